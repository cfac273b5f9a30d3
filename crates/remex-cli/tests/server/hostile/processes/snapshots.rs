//! What is left of a quiet stream beside a flood.

use serde_json::json;

use crate::support::{Server, decode};

#[test]
fn a_line_on_stderr_survives_megabytes_of_stdout() {
    let server = Server::start();
    let client = server.client();
    let script = "head -c 3000000 /dev/zero; echo first >&2; head -c 3000000 /dev/zero; \
                  head -c 100000 /dev/zero | tr '\\0' x >&2; echo last >&2; head -c 3000000 /dev/zero";
    client.start("p", &["/bin/sh", "-c", script], json!({"output": {"overflow": "evict"}}));
    client.event("p", "process/closed");
    for most in [json!({}), json!({"maxBytes": 1_000})] {
        let snapshot = client
            .call("process/snapshot", crate::support::with(json!({"processId": "p"}), most.clone()))
            .unwrap();
        let [stdout, stderr] = ["stdout", "stderr"].map(|stream| decode(&snapshot[stream]));
        let stderr = String::from_utf8(stderr).unwrap();
        let ends = (&stderr[..9], &stderr[stderr.len() - 8..]);
        assert_eq!(ends, ("first\nxxx", "xxxlast\n"), "{most}");
        assert!(stdout.len() >= 500, "{most}: {} bytes of stdout", stdout.len());
        let shown = (stdout.len() + stderr.len()) as u64;
        assert_eq!(snapshot["omittedBytes"].as_u64(), Some(9_100_011 - shown));
    }
}
