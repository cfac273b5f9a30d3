//! Sessions whose holders are silent for good.

use serde_json::json;

use crate::support::{Server, Watched};

#[test]
fn resuming_the_session_of_a_silent_oldest_dialect_client_leaves_nothing_behind() {
    let server = Server::start();
    let silent = server.connect();
    let session = silent.initialize_with(json!({"clientName": "v0"}))["sessionId"].clone();
    let started = silent.start("p", &["/bin/sleep", "1000"], json!({}));
    let process = Watched::printed(&started["pid"].to_string());
    silent.stop_reading();

    let heir = server.connect();
    let resume = json!({"clientName": "heir", "resumeSessionId": session});
    let refused = heir.call("initialize", resume).unwrap_err();
    assert_eq!(
        refused["data"]["kind"], "unknownSession",
        "a session of the oldest dialect ends with its client"
    );
    process.assert_ends();
}
