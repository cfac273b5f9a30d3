//! A state directory on a disk that loses what was not synced.

use std::fs;

use crate::{
    state::state_dir::StateDir,
    testing::{Medium, Names},
};

#[test]
fn a_state_directory_that_was_opened_survives_a_power_failure() {
    let medium = Medium::new();
    let tags = StateDir::open(&medium.new_dir()).unwrap().tags().number();
    for names in [Names::Synced, Names::Current] {
        let after = medium.after_power_failure(names);
        let version = fs::read_to_string(after.new_dir().join("version"));
        assert_eq!(version.unwrap(), "1\n", "{names:?}");
        assert_eq!(StateDir::open(&after.new_dir()).unwrap().tags().number(), tags, "{names:?}");
    }
}

#[test]
fn a_state_directory_that_cannot_be_synced_is_not_used() {
    let medium = Medium::new();
    medium.break_at("state");
    let error = StateDir::open(&medium.new_dir()).unwrap_err().to_string();
    assert!(error.contains("Input/output error"), "{error}");
}
