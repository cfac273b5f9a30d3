//! Recorded sessions of a client of today, replayed against this server.
//!
//! The answers have the same members, types and error codes, and each process says the same in the same order.
//! What was recorded is described in `spec/transcripts/README.md`.

mod process_record;
mod recorded_host;
mod recording;
mod replay;
mod web;

use std::collections::BTreeSet;

use replay::replay;

/// One test per recording, and their names for the test that finds forgotten ones.
macro_rules! replays {
    ($($test:ident: $file:literal),* $(,)?) => {
        const RECORDINGS: &[&str] = &[$($file),*];

        $(
            #[test]
            fn $test() {
                replay($file);
            }
        )*
    };
}

replays! {
    a_client_that_patches_files_gets_the_recorded_answers: "apply-patch",
    a_client_that_copies_files_in_blocks_gets_the_recorded_answers: "copy-file-streaming",
    a_client_whose_connection_is_cut_gets_the_recorded_answers: "cut-and-resume",
    a_client_that_repeats_an_unanswered_write_gets_the_recorded_answers: "cut-before-write-response",
    a_client_that_interrupts_gets_the_recorded_answers: "interrupt",
    a_client_that_waits_long_gets_the_recorded_answers: "keepalive-ping",
    a_client_that_does_everything_gets_the_recorded_answers: "main",
    a_client_with_tools_over_http_gets_the_recorded_answers: "mcp-http",
    a_client_with_tools_over_pipes_gets_the_recorded_answers: "mcp-stdio",
    a_client_that_looks_at_a_project_gets_the_recorded_answers: "project-git-agents-skills-image",
    a_client_that_was_told_its_session_is_attached_gets_the_recorded_answers: "resume-already-attached",
    a_client_that_resumes_again_and_again_gets_the_recorded_answers: "resume",
    a_client_that_wants_to_read_only_gets_the_recorded_answers: "sandbox-read-only",
    a_client_that_wants_to_write_in_one_place_gets_the_recorded_answers: "sandbox-workspace-write",
    a_client_whose_server_was_restarted_gets_the_recorded_answers: "server-restarted",
    a_client_over_stdio_gets_the_recorded_answers: "stdio",
    a_client_that_watches_missing_files_gets_the_recorded_answers: "watch-missing",
}

#[test]
fn recorded_transcripts_replay() {
    let there: BTreeSet<String> = recording::names();
    assert_eq!(there, RECORDINGS.iter().map(|&name| name.to_owned()).collect());
}
