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
        a_command_tells_its_output_and_how_it_ends
        a_signal_is_told_as_a_shell_tells_it
        what_is_written_comes_back_once_and_in_order
        output_that_any_server_retains_arrives_whole_and_in_order
        a_terminal_speaks_on_one_stream
        a_program_that_is_not_there_is_named
        a_wait_finds_a_text_that_arrives_in_pieces
        a_wait_ends_with_the_process
        a_late_consumer_sees_what_is_retained
        two_consumers_see_the_same
        a_kill_ends_the_process
        a_dropped_handle_can_end_its_process
        a_process_whose_handle_is_dropped_goes_on
        many_processes_run_at_once
        the_environment_and_the_directory_are_those_asked_for
        the_host_tells_what_it_is
        a_file_is_read_as_it_was_written
        what_is_not_there_is_told_as_such
        directories_are_made_listed_copied_and_removed
        a_large_file_goes_up_and_comes_down_whole
    ;
    ours:
        megabytes_arrive_whole_and_in_order
        closing_the_input_ends_a_filter
        dropping_the_input_closes_it
        communicate_writes_and_reads_at_the_same_time
        a_stalled_consumer_holds_up_its_own_process_only
        a_terminal_can_be_resized
        a_signal_reaches_the_process
        terminate_is_gentle_first
        silence_can_be_waited_for
        a_snapshot_has_the_beginning_and_the_end
        a_process_can_have_a_time_limit
        the_ledger_is_exact
        the_end_of_a_session_ends_its_processes
        what_is_evicted_is_told
        a_consumer_can_be_cancelled_at_any_moment
        lines_come_whole_tagged_and_in_order
        polling_consumes_what_it_returns
        any_handle_writes_and_continues_where_another_stopped
        input_on_a_terminal_ends
        relative_paths_are_those_of_the_host
        a_command_is_attached_to_or_started
        a_wait_after_a_match_does_not_find_it_again
        a_wait_after_a_match_finds_what_came_with_it
        everything_in_a_session_is_followed
        a_file_is_replaced_only_if_it_is_what_was_believed
        a_tree_goes_up_and_comes_down_the_same
        a_large_directory_comes_in_few_pages
        a_change_is_told
        the_web_is_asked_from_there
}
