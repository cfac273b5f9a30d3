//! On whose behalf sessions act: in listings and in the log.

use serde_json::json;

use crate::support::Server;

#[test]
fn every_log_line_about_a_connection_or_a_session_names_the_identity() {
    let server = Server::unix(&["--log", "debug"]);
    let client = server.connect();
    client.initialize_with(json!({"clientName": "test"}));
    client.shell("p", "echo fine");
    client.collect("p");
    let listed = client.call("session/list", json!({})).expect("sessions can be listed");
    assert_eq!(listed["sessions"][0]["identity"], "owner");
    client.notify("no/such/notification", json!({}));
    client.wait_end();
    let last = server.client();
    last.shell("q", "exec sleep 1000");
    let log = server.stop().stderr;
    for line in log.lines().filter(|line| line.contains("connection=") || line.contains("session=")) {
        assert!(line.contains("identity=owner"), "{line}");
    }
    for message in
        ["session created", "process started", "process exited", "process closed", "connection closed"]
    {
        assert!(log.contains(message), "`{message}` is in the log:\n{log}");
    }
}
