//! Every fuzz target for a moment: the seeds, and the same many mutations of them each time.
//!
//! A failure prints its input as a byte string, ready to become a seed and a test of the decoder.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod http_head;
mod mutation;
mod seeds;

use std::panic::{AssertUnwindSafe, catch_unwind};

use mutation::Mutator;

#[test]
fn a_message_is_what_serde_json_makes_of_it_and_can_always_be_answered() {
    run("message", 25_000, remex_fuzz::message);
}

#[test]
fn a_binary_message_has_one_spelling() {
    run("binary", 25_000, remex_fuzz::binary);
}

#[test]
fn the_files_of_a_log_give_true_numbers_and_an_end() {
    run("log", 750, remex_fuzz::log);
}

#[test]
fn base64_has_one_spelling() {
    run("blob", 50_000, remex_fuzz::blob);
}

#[test]
fn the_uri_of_a_path_names_the_path() {
    run("host_path", 75_000, remex_fuzz::host_path);
}

#[test]
fn lines_do_not_depend_on_how_they_arrive() {
    run("lines", 50_000, remex_fuzz::lines);
}

#[test]
fn websocket_frames_do_not_depend_on_how_they_arrive() {
    run("websocket", 50_000, remex_fuzz::websocket);
}

#[test]
fn large_messages_are_read_as_if_they_were_small() {
    run("frame_reader", 1_500, remex_fuzz::frame_reader);
}

#[test]
fn a_pattern_of_names_matches_what_it_means() {
    run("env_policy", 75_000, remex_fuzz::env_policy);
}

#[test]
fn a_listen_address_is_printed_as_itself() {
    run("listen_address", 50_000, remex_fuzz::listen_address);
}

#[test]
fn every_mistake_in_an_environments_file_is_on_one_of_its_lines() {
    run("environments", 5_000, remex_fuzz::environments);
}

#[test]
fn only_a_signed_jwt_with_valid_claims_is_accepted() {
    run("jwt", 12_500, remex_fuzz::jwt);
}

#[test]
fn a_jwks_has_public_keys_only() {
    run("jwks", 12_500, remex_fuzz::jwks);
}

#[test]
fn a_token_file_has_different_tokens() {
    run("token_file", 12_500, remex_fuzz::token_file);
}

#[test]
fn scopes_are_printed_as_themselves() {
    run("scopes", 25_000, remex_fuzz::scopes);
}

#[test]
fn a_configuration_prints_as_itself_and_every_mistake_is_on_one_of_its_lines() {
    run("server_config", 2_500, remex_fuzz::server_config);
}

#[test]
fn a_sandbox_profile_is_refused_or_becomes_one_policy() {
    run("sandbox", 2_500, remex_fuzz::sandbox);
}

#[test]
fn a_sandbox_pattern_denies_what_it_means() {
    run("sandbox_pattern", 1_250, remex_fuzz::sandbox_pattern);
}

#[test]
fn a_request_head_gets_one_answer_however_it_arrives() {
    let port = http_head::Port::open();
    run("http_head", 1_500, |head| port.check(head));
}

/// Runs `target` on its seeds and on `rounds` mutations of them.
fn run(name: &str, rounds: usize, target: impl Fn(&[u8])) {
    let seeds = seeds::of(name);
    assert!(!seeds.is_empty(), "`{name}` has no seeds");
    let attempt = |input: &[u8]| {
        let outcome = catch_unwind(AssertUnwindSafe(|| target(input)));
        assert!(outcome.is_ok(), "`{name}` fails on b\"{}\"", input.escape_ascii());
    };
    seeds.iter().for_each(|seed| attempt(seed));
    let mut mutator = Mutator::new(name, &seeds);
    for _ in 0..rounds {
        attempt(&mutator.next_input());
    }
}
