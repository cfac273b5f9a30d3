//! The trace context of a request, in the log and for what the server starts.

use serde_json::{Value, json};

use crate::support::{Client, Finished, Server, program};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn traceparent() -> String {
    format!("00-{TRACE}-{PARENT}-01")
}

/// Makes a call with the given member `trace`.
fn call(client: &Client, id: &str, method: &str, params: &Value, trace: &Value) -> Result<Value, Value> {
    client.send_json(&json!({"id": id, "method": method, "params": params, "trace": trace}));
    client.outcome(&json!(id))
}

fn start(id: &str, cwd: &str, script: &str) -> Value {
    json!({
        "processId": id, "argv": ["sh", "-c", script], "cwd": format!("file://{cwd}"), "env": {}, "tty": false,
        "pipeStdin": false, "arg0": null
    })
}

/// Returns the lines of the log with this message.
fn lines<'a>(log: &'a Finished, message: &str) -> Vec<&'a str> {
    let found: Vec<_> = log.stderr.lines().filter(|line| line.contains(message)).collect();
    assert!(!found.is_empty(), "`{message}` is in the log:\n{}", log.stderr);
    found
}

#[test]
fn the_log_lines_of_a_traced_request_carry_its_trace() {
    let server = Server::unix(&["--log", "info"]);
    let client = server.client();
    let trace = json!({"traceparent": traceparent(), "tracestate": "vendor=1"});
    call(&client, "s", "process/start", &start("traced", "/", "exit 3"), &trace).expect("it starts");
    client.collect("traced");
    call(&client, "n", "process/start", &start("nowhere", "/no/such", "true"), &trace)
        .expect_err("there is no such directory");
    client.shell("plain", "true");
    client.collect("plain");
    let log = server.stop();
    for message in ["process started", "process exited", "process closed", "process did not start"] {
        for line in lines(&log, message) {
            let ids = [format!("trace_id={TRACE}"), format!("parent_id={PARENT}")];
            let is_traced = ids.iter().all(|id| line.contains(id));
            assert_eq!(is_traced, !line.contains("plain"), "{line}");
        }
    }
}

#[test]
fn the_span_of_a_request_names_method_request_session_and_process() {
    let server = Server::unix(&["--log", "debug"]);
    let client = server.connect();
    let session = client.initialize();
    let trace = json!({"traceparent": traceparent()});
    client.shell("p", "read line");
    call(&client, "my request", "process/terminate", &json!({"processId": "p"}), &trace).expect("it ends");
    client.collect("p");
    let log = server.stop();
    let line = lines(&log, ": request connection=")
        .into_iter()
        .find(|line| line.contains("process/terminate"))
        .expect("the request is in the log");
    let session = session["sessionId"].as_str().expect("a session has an id");
    for part in
        [TRACE, PARENT, "request=my request", "identity=owner", "process=\"p\"", "connection=", session]
    {
        assert!(line.contains(part), "{part} in {line}");
    }
}

#[test]
fn a_session_that_a_traced_request_creates_is_logged_with_the_trace() {
    let server = Server::unix(&["--log", "info"]);
    let client = server.connect();
    let trace = json!({"traceparent": traceparent()});
    call(&client, "i", "initialize", &json!({"clientName": "test"}), &trace).expect("it is welcome");
    let log = server.stop();
    assert!(lines(&log, "session created")[0].contains(TRACE));
}

#[test]
fn an_invalid_trace_is_ignored() {
    let server = Server::unix(&["--log", "debug"]);
    let client = server.client();
    let zero = |digits: usize| "0".repeat(digits);
    let invalid = [
        json!({"traceparent": ""}),
        json!({"traceparent": "00-1-2-00"}),
        json!({"traceparent": format!("{}0", traceparent())}),
        json!({"traceparent": traceparent().to_uppercase()}),
        json!({"traceparent": format!("00-{}-{PARENT}-01", zero(32))}),
        json!({"traceparent": format!("00-{TRACE}-{}-01", zero(16))}),
        json!({"traceparent": format!("ff-{TRACE}-{PARENT}-01")}),
        json!({"traceparent": "é".repeat(64 << 10)}),
    ];
    for (index, trace) in invalid.iter().enumerate() {
        call(&client, &format!("r{index}"), "environment/status", &json!({}), trace).expect("it is answered");
        assert!(server.stderr_line("trace ignored").contains(&format!("request=r{index} ")), "{trace}");
    }
    let harmless = [
        json!(null),
        json!({}),
        json!({"tracestate": "a=1"}),
        json!({"traceparent": traceparent(), "tracestate": "a".repeat(64 << 10)}),
        json!({"traceparent": traceparent(), "tracestate": "\u{1b}[2J\n"}),
    ];
    for (index, trace) in harmless.iter().enumerate() {
        call(&client, &format!("h{index}"), "environment/status", &json!({}), trace).expect("it is answered");
    }
    // The wrong type makes a message malformed, as in the base dialect; the connection stays open.
    for trace in [json!(1), json!("x"), json!([]), json!({"traceparent": 1}), json!({"tracestate": {}})] {
        client.send_json(&json!({"id": 1, "method": "environment/status", "params": {}, "trace": trace}));
        assert_eq!(client.complaint().0, -32600, "{trace}");
    }
    client.call("environment/status", json!({})).expect("the connection is fine");
    let log = server.stop();
    assert!(!log.stderr.contains("aaaaaaaa"), "the state of other systems is not logged");
}

#[test]
fn the_program_propagates_the_trace_of_its_environment() {
    let server = Server::unix(&["--log", "info"]);
    let mut command = program(&["run", "--on", server.address(), "--", "true"]);
    command.env("TRACEPARENT", traceparent()).env("TRACESTATE", "vendor=1");
    assert_eq!(command.status().expect("the program runs").code(), Some(0));
    let mut command = program(&["run", "--on", server.address(), "--", "true"]);
    command.env("TRACEPARENT", "nonsense");
    assert_eq!(command.status().expect("the program runs").code(), Some(0));
    let log = server.stop();
    let traced: Vec<_> = lines(&log, "process started")
        .iter()
        .map(|line| line.contains(&format!("trace_id={TRACE}")))
        .collect();
    assert_eq!(traced, [true, false]);
}

#[test]
fn children_do_not_see_the_credentials_of_the_collector() {
    let mut command = program(&["serve", "--listen", "stdio"]);
    let secrets = ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"];
    for name in secrets {
        command.env(name, "authorization=secret");
    }
    command.env("OTEL_SERVICE_NAME", "mine").env_remove("TRACEPARENT");
    let (_server, client) = Server::launch_stdio(command);
    client.initialize();
    let mut start = start("p", "/", "env");
    start["envPolicy"] =
        json!({"inherit": "all", "ignoreDefaultExcludes": true, "exclude": [], "set": {}, "includeOnly": []});
    let trace = json!({"traceparent": traceparent()});
    call(&client, "s", "process/start", &start, &trace).expect("it starts");
    let environment = client.collect("p").text();
    assert!(environment.contains("OTEL_SERVICE_NAME=mine"), "{environment}");
    assert!(!environment.contains("secret"), "{environment}");
    assert!(!environment.contains("TRACEPARENT"), "{environment}");
}
