"""Which test proves which public fault not to be ours.

The table is `MAP`: by the labels of `../shared/scenarios/public-faults.md` (A1 is part A, number 1; numbers have gaps), the
tests that would fail if Adjourn had that fault. `LATER` names those of which a part waits for something not built yet, and
what of it is tested until then. Every name in the table is a test that exists: a test that is renamed is renamed here.
"""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent

MAP: dict[str, str] = {
    "A1": "test_one_answer_of_two_is_acted_on_at_once_and_the_model_waits_for_the_other "
    "test_siblings_of_a_pause_run_at_once_are_kept_and_never_run_again",
    "A2": "test_one_of_six_answers_leaves_five_paused_and_nothing_else_runs",
    "A3": "test_a_session_survives_the_death_of_its_process_at_any_commit "
    "test_a_run_that_was_cut_off_comes_back_as_a_pause_of_unknown_outcome",
    "A4": "test_one_answer_of_two_is_acted_on_at_once_and_the_model_waits_for_the_other "
    "test_a_partial_answer_sends_nothing_and_the_rest_sends_all_in_call_order",
    "A5": "test_partial_decisions_from_separate_cold_processes_add_up_to_one_turn",
    "A6": "test_a_second_round_of_pauses_has_the_same_fields_as_the_first",
    "A7": "test_two_calls_with_the_same_tool_and_input_and_no_refs_are_told_apart",
    "A8": "test_answers_in_any_order_each_reach_their_own_call",
    "A9": "test_a_tool_that_was_added_while_running_pauses_and_resumes_like_any_other",
    "A10": "test_pauses_that_happen_in_random_order_have_ids_of_their_own_and_take_their_own_answers",
    "A12": "test_approved_declined_and_ungated_calls_each_have_their_result_in_call_order",
    "A13": "test_partial_decisions_from_separate_cold_processes_add_up_to_one_turn",
    "A14": "test_a_declined_call_never_runs_in_a_later_turn_a_fork_a_retry_or_another_process",
    "A15": "test_an_old_handle_does_not_answer_the_newer_pause_of_the_same_conversation "
    "test_an_answer_to_an_older_model_message_is_stale_and_never_reaches_the_newer_pause",
    "A16": "test_forged_unknown_stale_and_resolved_answers_are_different_errors "
    "test_a_replaced_input_on_the_wire_must_name_the_record_and_is_validated",
    "A17": "test_a_wire_restart_with_other_input_is_refused_as_modified_and_does_not_run "
    "test_a_tool_that_changed_since_the_pause_is_not_restarted_and_respond_still_works",
    "A20": "test_a_pause_whose_tool_is_gone_is_listed_says_what_is_missing_and_can_be_closed "
    "test_a_pause_whose_agent_is_gone_can_be_closed_and_its_session_goes_on_when_the_agent_is_back",
    "A21": "test_a_declined_call_never_runs_in_a_later_turn_a_fork_a_retry_or_another_process",
    "A22": "test_falsy_is_an_answer",
    "A23": "test_a_pause_during_a_restart_is_a_pause_like_any_other test_restarts_of_one_call_are_bounded",
    "A24": "test_a_respond_only_interrupt_cannot_be_restarted_and_stays",
    "A25": "test_of_20_decisions_from_20_threads_one_wins_and_the_tool_runs_once "
    "test_of_eight_processes_that_decide_at_once_one_wins_and_all_others_are_told_who",
    "A26": "test_an_old_handle_that_answers_after_somebody_else_did_runs_nothing",
    "A27": "test_of_decisions_through_session_handles_of_two_processes_one_wins",
    "A28": "test_a_model_error_after_a_resume_is_retried_without_running_the_tool_again",
    "A29": "test_a_pause_whose_tool_is_gone_is_listed_says_what_is_missing_and_can_be_closed "
    "test_a_pause_whose_agent_is_gone_can_be_closed_and_its_session_goes_on_when_the_agent_is_back "
    "test_a_pause_inside_whose_session_is_lost_can_be_closed "
    "test_a_pause_inside_that_was_answered_in_another_branch_expires_once_and_for_all",
    "A31": "test_a_fresh_process_has_all_interrupts_with_the_same_ids_and_payloads",
    "A32": "test_the_turn_runs_when_nobody_reads_the_stream_and_can_be_read_afterwards "
    "test_a_reader_that_stops_early_does_not_stop_the_turn",
    "A33": "test_the_owner_is_kept_and_whoever_answered_is_recorded",
    "A34": "test_a_value_is_the_same_everywhere_before_and_after_it_was_stored "
    "test_what_has_no_json_form_fails_where_it_is_made_and_spoils_nothing_before",
    "A35": "test_a_pause_with_five_megabytes_of_state_resumes_at_once_elsewhere",
    "A36": "test_a_decision_nobody_can_run_now_is_recorded_and_recovered_by_who_runs_next",
    "A37": "test_an_overdue_pause_is_declined_as_expired_and_not_as_a_refusal "
    "test_a_turn_that_is_taken_up_after_an_expiry_says_what_it_came_to "
    "test_a_message_after_the_only_pause_expired_is_taken_and_the_expiry_told_first "
    "test_a_decision_on_a_pause_that_expired_is_stale_though_another_one_still_waits "
    "test_a_decision_on_a_pause_inside_that_expired_is_stale_whatever_came_after_it",
    "A38": "test_at_every_snapshot_each_call_has_its_result_or_is_pending "
    "test_whenever_a_model_is_called_each_request_has_exactly_one_response_in_request_order",
    "A39": "test_a_session_survives_the_death_of_its_process_at_any_commit",
    "A42": "test_aborting_a_running_turn_injects_no_result_and_the_next_message_is_taken",
    "A43": "test_a_run_of_unknown_outcome_can_be_restarted_and_declined "
    "test_no_side_effect_is_lost_or_doubled_wherever_the_process_dies_on_sqlite "
    "test_a_run_that_was_cut_off_beside_a_pause_that_expired_comes_back_as_unknown_and_the_session_goes_on",
    "A44": "test_a_message_while_paused_is_refused_by_default_and_nothing_changes "
    "test_a_message_while_paused_declines_the_open_calls_where_the_agent_says_so "
    "test_a_queued_message_is_durable_and_is_sent_when_the_pause_is_over",
    "A45": "test_after_a_respond test_after_a_restart test_after_a_decline",
    "A48": "test_a_signed_streamed_call_is_answered_by_a_new_process",
    "A49": "test_nothing_is_invented_for_what_a_signing_gemini_left_unsigned "
    "test_foreign_history_goes_without_its_extras_and_with_one_stand_in_where_it_is_demanded",
    "A50": "test_foreign_history_goes_without_its_extras_and_with_one_stand_in_where_it_is_demanded",
    "A51": "test_a_pause_saved_as_json_resumes_elsewhere_with_reasoning_beside_its_call "
    "test_what_the_server_did_not_store_goes_back_without_ids_it_could_not_find "
    "test_shortening_in_the_middle_of_a_paused_turn_keeps_the_turn_whole",
    "A52": "test_a_pause_keeps_thinking_byte_for_byte_into_a_fresh_process "
    "test_a_recorded_thinking_block_without_text_keeps_its_signature "
    "test_redacted_thinking_beside_a_client_tool_call_is_kept_and_sent_back",
    "A53": "test_a_pause_saved_as_json_resumes_elsewhere_with_reasoning_beside_its_call",
    "A54": "test_the_budget_of_a_failing_tool_goes_on_through_other_tools_pauses_and_processes",
    "A55": "test_argument_errors_and_tool_errors_have_budgets_of_their_own",
    "A56": "test_a_model_that_makes_the_same_call_for_ever_is_stopped_with_a_reason_that_is_kept "
    "test_drifting_arguments_do_not_get_round_the_bound_of_tool_errors "
    "test_the_same_call_after_a_success_is_run_and_told_like_the_first",
    "A58": "test_calls_come_apart_in_every_real_shape",
    "A59": "test_arguments_cut_off_by_the_token_limit_never_reach_the_tool",
    "A61": "test_input_is_validated_before_anyone_is_asked",
    "A62": "test_a_pause_three_agents_deep_is_shown_with_its_path_and_takes_every_decision_at_the_root",
    "A63": "test_a_turn_cut_at_any_event_stored_and_replayed_is_the_same_turn",
    "B1": "test_a_wrong_decision_is_refused_before_it_is_stored "
    "test_an_answer_that_is_no_json_is_refused_and_leaves_no_trace",
    "B3": "test_of_20_decisions_from_20_threads_one_wins_and_the_tool_runs_once "
    "test_of_eight_processes_that_decide_at_once_one_wins_and_all_others_are_told_who",
    "B4": "test_an_old_handle_that_answers_after_somebody_else_did_runs_nothing "
    "test_a_fork_of_a_paused_snapshot_has_interrupts_of_its_own",
    "B5": "test_forged_unknown_stale_and_resolved_answers_are_different_errors "
    "test_an_answer_that_looks_like_a_map_of_ids_is_delivered_as_data",
    "B6": "test_a_resume_of_a_session_that_never_paused_is_refused_and_calls_no_model",
    "B7": "test_falsy_is_an_answer test_an_answer_that_is_no_json_is_refused_and_leaves_no_trace",
    "B8": "test_pauses_that_happen_in_random_order_have_ids_of_their_own_and_take_their_own_answers",
    "B9": "test_two_of_three_answered_together_are_not_asked_again_and_the_turn_waits_for_the_third",
    "B10": "test_one_of_six_answers_leaves_five_paused_and_nothing_else_runs "
    "test_answers_in_any_order_each_reach_their_own_call",
    "B11": "test_the_second_pause_inside_waits_for_an_answer_of_its_own",
    "B13": "test_answers_without_a_key_are_refused_where_they_would_fit_more_than_one_call",
    "B15": "test_a_declined_call_never_runs_in_a_later_turn_a_fork_a_retry_or_another_process",
    "B16": "test_a_handler_for_a_tool_that_is_misspelt_is_refused_before_anything_runs "
    "test_a_handler_for_a_tool_that_is_misspelt_is_refused_where_an_agent_names_its_tools "
    "test_a_gate_that_allows_nothing_or_is_no_gate_is_refused_where_it_is_written",
    "B17": "test_the_restart_of_another_tool_by_name_is_refused",
    "B18": "test_an_edited_input_runs_and_the_history_shows_both",
    "B20": "test_siblings_of_a_pause_run_at_once_are_kept_and_never_run_again",
    "B21": "test_an_idempotent_run_that_was_cut_off_runs_again_by_itself_with_the_same_key "
    "test_a_run_that_was_cut_off_comes_back_as_a_pause_of_unknown_outcome",
    "B22": "test_after_a_failure_a_new_message_goes_on_and_the_failed_call_is_closed",
    "B23": "test_aborting_a_running_turn_injects_no_result_and_the_next_message_is_taken",
    "B24": "test_a_message_while_paused_is_refused_by_default_and_nothing_changes",
    "B25": "test_a_cancelled_turn_and_a_paused_one_differ_and_the_next_message_is_never_taken_for_an_answer",
    "B26": "test_a_pause_is_listed_in_its_own_session_only",
    "B27": "test_bad_calls_for_ever_are_stopped_with_a_pause_among_them_and_a_valid_history",
    "B28": "test_state_that_does_not_fit_is_refused_at_the_update_and_the_old_one_stays",
    "B29": "test_state_that_was_set_before_a_pause_is_there_wherever_it_is_read",
    "B30": "test_an_interrupt_surfaces_as_a_pause_wherever_in_the_tool_it_is_raised "
    "test_an_interrupt_in_a_thread_of_a_sync_tool_surfaces_as_a_pause",
    "B32": "test_text_comes_first_then_each_of_two_parallel_pauses_exactly_once "
    "test_a_resumed_stream_shows_the_results_and_the_new_text_and_nothing_again",
    "B33": "test_the_last_chunk_says_why_the_leg_rests",
    "B34": "test_two_of_three_answered_together_are_not_asked_again_and_the_turn_waits_for_the_third",
    "B35": "test_a_value_is_the_same_everywhere_before_and_after_it_was_stored",
    "B36": "test_what_has_no_json_form_fails_where_it_is_made_and_spoils_nothing_before",
    "B37": "test_an_answer_that_is_no_json_is_refused_and_leaves_no_trace",
    "B38": "test_a_tool_that_changed_since_the_pause_is_not_restarted_and_respond_still_works",
    "B39": "test_a_sqlite_file_of_this_format_is_read_whole_and_goes_on",
    "B40": "test_a_session_twice_as_long_takes_twice_the_bytes "
    "test_looking_again_and_again_at_what_is_paused_stores_nothing",
    "B41": "test_sixteen_writers_wait_for_a_lock_and_lose_nothing test_a_lock_held_for_six_seconds_is_waited_for "
    "test_a_lock_that_is_never_let_go_is_named_after_the_time_set",
    "B43": "test_a_fork_of_an_older_snapshot_goes_its_own_way_and_both_reload_as_they_were",
    "B44": "test_a_fork_before_a_pause_asks_again_with_a_new_id "
    "test_a_pause_inside_that_was_answered_in_another_branch_is_answered_in_this_one_by_itself",
    "B46": "test_a_pause_three_agents_deep_is_shown_with_its_path_and_takes_every_decision_at_the_root",
    "B47": "test_shortening_in_the_middle_of_a_paused_turn_keeps_the_turn_whole",
    "B49": "test_approved_declined_and_ungated_calls_each_have_their_result_in_call_order",
    "B50": "test_ten_pauses_in_a_row_are_each_listed_and_answerable",
}

LATER: dict[str, str] = {
    "A13": "three requests over HTTP; tested with three processes on one store",
    "A16": "the statuses over HTTP; tested at the session and the inbox",
    "A24": "that CLI and UI hide the verb; `allow` is on the interrupt and on the record",
    "A27": "HTTP and CLI at once; both will decide through the inbox, whose races are tested",
    "A32": "a dropped SSE connection; tested with readers that stop early",
    "A63": "Temporal; tested with the journal",
    "B26": "a web page after a reload; tested with a new process",
}


def test_every_test_that_the_table_names_exists() -> None:
    there = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert sorted({n for names in MAP.values() for n in names.split()} - there) == []
    assert set(LATER) <= set(MAP)


def test_every_test_of_a_scenario_is_in_the_table() -> None:
    named = {n for names in MAP.values() for n in names.split()}
    here = {
        name
        for path in Path(__file__).parent.glob("test_*.py")
        if path.name != Path(__file__).name
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert sorted(here - named) == []
