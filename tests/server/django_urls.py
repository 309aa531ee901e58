"""The addresses of a Django project that has none of its own."""

urlpatterns: list[object] = []
