"""Model providers, one file each. None imports another, and none imports its SDK before it is first used."""
