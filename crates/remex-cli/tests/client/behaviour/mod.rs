//! One client, one behaviour: the same stories on every way to a server, and on a server that we did not write.
//!
//! What a story needs beyond the base dialect it tells by where it stands: those of `base.rs` run on all five places,
//! the others on the four of our own.

mod base;
mod environments;
mod files;
mod ours;
mod place;

pub(crate) use place::Place;

/// Makes a module of tests for one place, one test for each story.
macro_rules! stories {
    ($place:ident: $($module:ident { $($story:ident,)* })*) => {
        mod $place {
            $($(
                #[test]
                fn $story() {
                    super::place::run(super::Place::$place, super::$module::$story);
                }
            )*)*
        }
    };
}

/// Names the stories once, for all places.
macro_rules! everywhere {
    (base: $($base:ident)* ; ours: $($ours:ident)*) => {
        stories!(in_process: base { $($base,)* } ours { $($ours,)* });
        stories!(stdio: base { $($base,)* } ours { $($ours,)* });
        stories!(websocket: base { $($base,)* } ours { $($ours,)* });
        stories!(unix: base { $($base,)* } ours { $($ours,)* });
        stories!(codex: base { $($base,)* });
    };
}

everywhere! {
    base:
        a_command_reports_its_output_and_exit
        a_signal_exit_is_reported_like_a_shell_does
        input_is_echoed_once_and_in_order
        output_within_any_retention_arrives_complete_and_in_order
        a_terminal_has_one_output_stream
        a_missing_program_is_named
        a_wait_finds_a_text_that_arrives_in_pieces
        a_wait_ends_with_the_process
        a_late_consumer_sees_what_is_retained
        two_consumers_see_the_same
        a_kill_ends_the_process
        a_dropped_handle_can_end_its_process
        a_process_survives_its_dropped_handle
        many_processes_run_at_once
        the_requested_environment_and_directory_are_used
        the_host_describes_itself
        a_file_is_read_as_it_was_written
        missing_files_are_reported_as_not_found
        directories_are_created_listed_copied_and_removed
        a_large_file_is_uploaded_and_downloaded_completely
    ;
    ours:
        megabytes_arrive_complete_and_in_order
        closing_the_input_ends_a_filter
        dropping_the_input_closes_it
        communicate_writes_and_reads_at_the_same_time
        a_stalled_consumer_blocks_only_its_own_process
        a_terminal_can_be_resized
        a_signal_reaches_the_process
        terminate_is_graceful_first
        silence_can_be_waited_for
        a_snapshot_has_the_head_and_the_tail
        a_process_can_have_a_time_limit
        the_ledger_is_exact
        the_end_of_a_session_ends_its_processes
        evicted_output_is_reported
        a_consumer_can_be_cancelled_at_any_moment
        lines_are_complete_labelled_and_in_order
        polling_consumes_what_it_returns
        any_handle_continues_writing_where_another_stopped
        input_on_a_terminal_ends
        relative_paths_are_resolved_on_the_host
        a_command_is_attached_to_or_started
        a_wait_after_a_match_does_not_find_it_again
        a_wait_after_a_match_finds_what_came_with_it
        every_process_of_a_session_is_followed
        a_file_is_replaced_only_if_it_matches_the_expected_hash
        a_tree_is_unchanged_by_upload_and_download
        a_large_directory_is_listed_in_few_pages
        a_change_is_reported
        http_requests_are_sent_from_the_host
}
