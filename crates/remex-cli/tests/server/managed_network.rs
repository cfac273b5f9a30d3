//! Confined processes that reach some hosts through the proxy of the server, and nothing else.

mod policy;

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{AuditLog, Client, Output, PATIENCE, Server, start_params, with};

/// Where a jail finds the proxy.
const PROXY: &str = "/dev/tcp/127.0.0.1/28282";

/// A host that answers every connection: with its name to a request of HTTP, and with an echo to anything else.
struct Host {
    address: SocketAddr,
}

impl Host {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a listener has an address");
        thread::spawn(move || {
            for stream in listener.incoming().filter_map(Result::ok) {
                thread::spawn(move || answer(stream));
            }
        });
        Self { address }
    }

    fn port(&self) -> u16 {
        self.address.port()
    }
}

fn answer(mut stream: TcpStream) {
    let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        heard.extend_from_slice(&buffer[..len]);
        if heard.starts_with(b"echo") {
            let _ = stream.write_all(&buffer[..len]);
        } else if heard.ends_with(b"\r\n\r\n") {
            let host = String::from_utf8_lossy(&heard);
            let host = host.lines().find_map(|line| line.strip_prefix("Host: ")).unwrap_or("nobody");
            let body = format!("reached {host}\n");
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            return;
        }
    }
}

/// Everything can be read; only these hosts can be reached.
fn sandbox(hosts: &Value) -> Value {
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
    json!({"permissions": {"type": "managed", "network": "restricted",
        "file_system": {"type": "restricted", "entries": [root]}},
        "windowsSandboxLevel": "disabled", "hosts": hosts})
}

fn allow(hosts: &[&str]) -> Value {
    json!({"sandbox": sandbox(&json!({"allow": hosts}))})
}

/// Defines `ask REQUEST`, which prints the answer of the proxy.
const ASK: &str =
    "ask() { exec 3<>/dev/tcp/127.0.0.1/28282 || return 9; printf \"$1\" >&3; cat <&3; exec 3>&-; }; ";

fn run(client: &Client, process: &str, script: &str, more: Value) -> Output {
    client.start(process, &["bash", "-c", &format!("{ASK}{script}")], more);
    client.collect(process)
}

fn denied(output: &Output) -> Vec<(String, u64, u64)> {
    let list = output.exited["networkDenied"].as_array().cloned().unwrap_or_default();
    let tuple = |entry: &Value| {
        let number = |name: &str| entry[name].as_u64().expect("a number");
        (entry["host"].as_str().expect("a name").to_owned(), number("port"), number("count"))
    };
    list.iter().map(tuple).collect()
}

#[test]
fn a_listed_host_is_reached_by_every_protocol_and_others_are_refused() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let audit = directory.path().join("audit");
    let flags = ["--log", "info", "--audit", audit.to_str().expect("the path is text")];
    let (server, host) = (Server::unix(&flags), Host::start());
    let client = server.client();
    let port = host.port();
    let listed = format!("127.0.0.1:{port}");
    let script = format!(
        "ask 'GET http://127.0.0.1:{port}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'; \
         ask 'CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\nGET / HTTP/1.1\\r\\nHost: tunnel\\r\\n\\r\\n'; \
         ask '\\x05\\x01\\x00\\x05\\x01\\x00\\x01\\x7f\\x00\\x00\\x01\\x{:02x}\\x{:02x}GET / HTTP/1.1\\r\\nHost: socks\\r\\n\\r\\n'",
        port >> 8,
        port & 255
    );
    let output = run(&client, "in", &script, allow(&[&listed]));
    let text = output.text();
    for reached in [&*format!("reached {listed}"), "reached tunnel", "reached socks"] {
        assert!(text.contains(reached), "{reached}: {text}");
    }
    assert_eq!((output.exit_code(), &output.exited["networkDenied"]), (0, &Value::Null));

    let script = "ask 'GET http://evil.example/ HTTP/1.1\\r\\n\\r\\n'; ask 'CONNECT evil.example:443 HTTP/1.1\\r\\n\\r\\n'; \
                  ask 'CONNECT EVIL.example.:443 HTTP/1.1\\r\\n\\r\\n'; exit 1";
    let output = run(&client, "out", script, allow(&[&listed]));
    assert_eq!(output.text().matches("HTTP/1.1 403 Forbidden").count(), 3, "{}", output.text());
    assert!(output.text().contains("remex: network: evil.example:443 is not in the allow-list"));
    let expected = [("evil.example".to_owned(), 80, 1), ("evil.example".to_owned(), 443, 2)];
    assert_eq!(denied(&output), expected);
    assert_eq!(output.exited["sandboxDenied"], true);
    let read = client.call("process/read", json!({"processId": "out"})).unwrap();
    assert_eq!(read["networkDenied"], output.exited["networkDenied"]);
    let logged = server.stderr_line("the sandbox refused a host");
    assert!(logged.contains("evil.example"), "{logged}");
    let members = json!({"event": "network", "process": "out", "outcome": "permissionDenied"});
    let lines = AuditLog::new(audit).lines_with(&members, 2);
    assert_eq!(
        (&lines[0]["host"], &lines[1]["host"]),
        (&json!("evil.example:80"), &json!("evil.example:443"))
    );
}

#[test]
fn there_is_no_route_around_the_proxy() {
    let (server, host) = (Server::unix(&[]), Host::start());
    let client = server.client();
    let port = host.port();
    let script = format!(
        "env | grep -ic proxy=; \
         (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>&1 && echo ESCAPED direct; \
         (exec 3<>/dev/tcp/1.1.1.1/53) 2>&1 && echo ESCAPED route; \
         (exec 3<>/dev/udp/1.1.1.1/53 && echo x >&3) 2>&1 && echo ESCAPED datagram; \
         getent hosts example.com && echo ESCAPED lookup; \
         ip link 2>&1 | grep -v 'lo:' | grep UP && echo ESCAPED device; true"
    );
    let output = run(&client, "p", &script, allow(&[&format!("127.0.0.1:{port}")]));
    let text = output.text();
    assert!(text.starts_with("8\n") && !text.contains("ESCAPED"), "{text}");

    // A list that allows everything public leads to nothing local, and the server itself is never reached.
    let flags = ["--metrics-listen", "http://127.0.0.1:0", "--metrics-open"];
    let server = Server::serve(&[&["--listen", "ws://127.0.0.1:0"], &flags[..]].concat());
    let line = server.stderr_line("remex serves metrics on ");
    let (_, metrics) = line.rsplit_once("http://").expect("the line has the URL");
    let own: u16 = server.address().rsplit(':').next().expect("a port").parse().expect("a number");
    let client = server.client();
    for (name, hosts, target) in [
        ("loopback", json!(["*"]), format!("127.0.0.1:{port}")),
        ("mapped", json!(["*"]), format!("[::ffff:127.0.0.1]:{port}")),
        ("metadata", json!(["*", "169.254.169.253"]), "169.254.169.254:80".to_owned()),
        ("any", json!(["*"]), format!("0.0.0.0:{port}")),
        ("localhost", json!(["*"]), format!("localhost:{port}")),
        ("own port", json!(["*", "127.0.0.1"]), format!("127.0.0.1:{own}")),
        ("metrics", json!(["*", "127.0.0.1"]), metrics.trim_end_matches("/metrics").to_owned()),
        ("own name", json!(["localhost"]), format!("localhost:{own}")),
        ("own address", json!(["127.0.0.9"]), format!("127.0.0.9:{own}")),
    ] {
        let script = format!("ask 'CONNECT {target} HTTP/1.1\\r\\n\\r\\n'");
        let more = json!({"sandbox": sandbox(&json!({"allow": hosts}))});
        let output = run(&client, name, &script, more);
        assert!(output.text().starts_with("HTTP/1.1 403 Forbidden"), "{name}: {}", output.text());
        assert_eq!(denied(&output).len(), 1, "{name}");
    }
}

#[test]
fn names_are_resolved_by_the_server_only() {
    let host = Host::start();
    let (directory, port) = (tempfile::tempdir().expect("a directory can be made"), host.port());
    let table = directory.path().join("hosts");
    let names = "127.0.0.1 localhost\n127.0.0.1 rebind.example.org inner.example.net\n169.254.169.254 meta.example.org\n";
    fs::write(&table, names).expect("a file can be written");
    // A server whose host knows these names.
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--", "sh", "-c"]);
    command.arg("mount --bind \"$0\" /etc/hosts && exec \"$@\"").arg(&table);
    command.args([env!("CARGO_BIN_EXE_remex"), "serve", "--listen", "stdio"]);
    let (_server, client) = Server::launch_stdio(command);
    client.initialize();
    let literal = format!("127.0.0.1:{port}");
    for (process, hosts, target, answer) in [
        // A pattern leads to no address of the host, whatever the name says.
        (
            "rebind",
            json!(["*.example.org", "*"]),
            format!("rebind.example.org:{port}"),
            "127.0.0.1 is local to the server",
        ),
        (
            "meta",
            json!(["*.example.org", "meta.example.org"]),
            "meta.example.org:80".to_owned(),
            "169.254.169.254 is local",
        ),
        ("exact", json!(["inner.example.net"]), format!("inner.example.net:{port}"), "127.0.0.1 is local"),
        // Listed by its address as well.
        (
            "inner",
            json!(["**.example.net", literal]),
            format!("inner.example.net:{port}"),
            "reached inner.example.net",
        ),
        ("self", json!(["localhost"]), format!("localhost:{port}"), "reached localhost"),
        (
            "apex",
            json!(["*.inner.example.net"]),
            format!("inner.example.net:{port}"),
            "not in the allow-list",
        ),
        ("unknown", json!(["*"]), "no-such-host.invalid:80".to_owned(), "502 Bad Gateway"),
    ] {
        let script = format!("ask 'GET http://{target}/ HTTP/1.1\\r\\n\\r\\n'");
        let output = run(&client, process, &script, json!({"sandbox": sandbox(&json!({"allow": hosts}))}));
        assert!(output.text().contains(answer), "{process}: {}", output.text());
    }
}

#[test]
fn malformed_proxy_requests_are_not_forwarded() {
    let (server, host) = (Server::unix(&[]), Host::start());
    let client = server.client();
    let port = host.port();
    for (number, target) in [
        format!("http://2130706433:{port}/"),
        format!("http://0x7f000001:{port}/"),
        format!("http://0177.0.0.1:{port}/"),
        format!("http://127.1:{port}/"),
        format!("http://good.example@127.0.0.1:{port}/"),
        format!("http://127.0.0.1:{port}%%40good.example/"),
        "/".to_owned(),
    ]
    .iter()
    .enumerate()
    {
        let script = format!("ask 'GET {target} HTTP/1.1\\r\\nHost: good.example\\r\\n\\r\\n'");
        let hosts = allow(&["*", "good.example", "127.0.0.1"]);
        let output = run(&client, &number.to_string(), &script, hosts);
        assert!(output.text().starts_with("HTTP/1.1 400 Bad Request"), "{target}: {}", output.text());
    }
    // Only the first request of a connection is passed on.
    let script = format!(
        "ask 'GET http://127.0.0.1:{port}/ HTTP/1.1\\r\\n\\r\\nGET http://evil.example/ HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n'; \
         ask 'POST http://127.0.0.1:{port}/ HTTP/1.1\\r\\nContent-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n'"
    );
    let output = run(&client, "smuggled", &script, allow(&["127.0.0.1"]));
    let text = output.text();
    assert_eq!((text.matches("reached ").count(), text.matches("HTTP/1.1 400 ").count()), (1, 1), "{text}");
    assert!(!text.contains("evil"), "{text}");
}

#[test]
fn each_jail_has_a_proxy_of_its_own() {
    let (server, host) = (Server::unix(&[]), Host::start());
    let client = server.client();
    let listed = host.address.to_string();
    let script = format!("read; ask 'GET http://{listed}/ HTTP/1.1\\r\\n\\r\\n'");
    let piped = |hosts: &[&str]| with(allow(hosts), json!({"pipeStdin": true}));
    let script = format!("{ASK}{script}");
    for (process, hosts) in [("with", piped(&[&listed])), ("without", piped(&["other.example"]))] {
        client.start(process, &["bash", "-c", &script], hosts);
    }
    // One without a list has no proxy at all, although others run.
    let output = run(&client, "offline", "ask x", json!({"sandbox": sandbox(&Value::Null)}));
    assert_ne!(output.exit_code(), 0, "{}", output.text());
    for process in ["without", "with"] {
        let go = json!({"processId": process, "chunk": crate::support::encode("\n")});
        client.call("process/write", go).unwrap();
    }
    assert!(client.collect("with").text().contains("reached"));
    assert!(client.collect("without").text().starts_with("HTTP/1.1 403 "));
}

#[test]
fn a_background_process_keeps_its_proxy_and_leaves_nothing_behind() {
    let (server, host) = (Server::unix(&[]), Host::start());
    let client = server.client();
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("the server runs").count();
    run(&client, "first", "true", allow(&["127.0.0.1"]));
    let before = descriptors();
    let listed = host.address.to_string();
    let directory = tempfile::tempdir().expect("a directory can be made");
    let path = directory.path().display().to_string();
    let writable = json!({"path": {"type": "path", "path": format!("file://{path}")}, "access": "write"});
    let mut sandbox = sandbox(&json!({"allow": [listed]}));
    sandbox["permissions"]["file_system"]["entries"].as_array_mut().expect("a list").push(writable);
    // The command ends at once, and what it started asks later.
    let later = format!(
        "(while ! test -e {path}/go; do sleep 0.02; done; ask 'GET http://{listed}/ HTTP/1.1\\r\\n\\r\\n' > {path}/answer.new; \
         mv {path}/answer.new {path}/answer) </dev/null >/dev/null 2>&1 &"
    );
    let output = run(&client, "parent", &later, json!({"sandbox": sandbox}));
    assert_eq!(output.exit_code(), 0);
    fs::write(directory.path().join("go"), "").expect("a file can be written");
    wait_until("the answer", || directory.path().join("answer").exists());
    let answer = fs::read_to_string(directory.path().join("answer")).expect("it is there");
    assert!(answer.contains("reached "), "{answer}");
    // A program that does not exist, and one that is killed with open connections.
    let missing = with(start_params("missing", &["/does/not/exist"]), allow(&["127.0.0.1"]));
    client.call("process/start", missing).unwrap_err();
    let script = format!(
        "exec 3<>{PROXY} 4<>{PROXY}; printf 'CONNECT {listed} HTTP/1.1\\r\\n\\r\\necho' >&3; read -u 3 line; echo ready; sleep 1000"
    );
    client.start("killed", &["bash", "-c", &script], allow(&[&listed]));
    client.wait_for_output("killed", "ready");
    client.call("process/terminate", json!({"processId": "killed"})).unwrap();
    client.collect("killed");
    wait_until("the descriptors are closed", || descriptors() <= before);
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_thousand_connections_of_one_process_do_not_affect_others() {
    let (server, host) = (Server::unix(&[]), Host::start());
    let client = server.client();
    let listed = host.address.to_string();
    // Slow ones fill what is accepted; silent ones fill the queue, and all others wait for it.
    let script = format!(
        "for i in $(seq 10 137); do eval \"exec $i<>{PROXY}\"; printf 'GET http' >&$i; done; \
         for j in $(seq 900); do (exec 3<>{PROXY}; sleep 1000) & done; echo ready; sleep 1000"
    );
    client.start("greedy", &["bash", "-c", &script], allow(&[&listed]));
    client.wait_for_output("greedy", "ready");
    let begun = Instant::now();
    let script = format!("ask 'GET http://{listed}/ HTTP/1.1\\r\\n\\r\\n'");
    let output = run(&client, "modest", &script, allow(&[&listed]));
    assert!(output.text().contains("reached "), "{}", output.text());
    assert!(begun.elapsed() < PATIENCE);
    client.call("process/terminate", json!({"processId": "greedy"})).unwrap();
    client.collect("greedy");
}

#[test]
fn a_large_transfer_is_complete() {
    let (server, host) = (Server::unix(&[]), Host::start());
    let client = server.client();
    let listed = host.address.to_string();
    let script = format!(
        "exec 3<>{PROXY}; printf 'CONNECT {listed} HTTP/1.1\\r\\n\\r\\n' >&3; read -u 3 line; read -u 3 line; \
         (printf echo; head -c 20000000 /dev/zero) >&3 & head -c 20000004 <&3 | sha256sum; \
         (printf echo; head -c 20000000 /dev/zero) | sha256sum"
    );
    let output = run(&client, "p", &script, allow(&[&listed]));
    let text = output.text();
    let mut sums = text.lines();
    assert!(sums.next().is_some_and(|sum| sum.len() > 60 && Some(sum) == sums.next()), "{text}");
}

#[test]
fn an_invalid_host_list_is_refused_and_nothing_runs() {
    let server = Server::unix(&[]);
    let client = server.client();
    for (hosts, part) in [
        (json!({"allow": ["0x7f000001"]}), "`0x7f000001` is not a host: write IPv4 addresses"),
        (json!({"allow": ["a.org", "http://a.org"]}), "`http://a.org` is not a host"),
        (json!({"allow": ["a.org"], "deny": ["*.*.org"]}), "`*.*.org` is not a host"),
        (json!({"allow": vec!["a.org"; 2000]}), "more than 1024 entries"),
        (json!({"allow": "a.org"}), "invalid type"),
        (json!({"deny": []}), "missing field `allow`"),
        (json!({"allow": [], "ports": [1]}), "unknown field `ports`"),
        (json!(["a.org"]), ""),
    ] {
        let start = with(start_params("p", &["true"]), json!({"sandbox": sandbox(&hosts)}));
        let error = client.call("process/start", start).unwrap_err();
        assert_eq!(error["code"], -32602, "{error}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains(part)), "{part}: {error}");
    }
    client.call("process/start", start_params("p", &["true"])).expect("the id is free");
}

/// What the base client sends for a network that is limited to some domains.
fn managed(domains: &Value, more: Value) -> Value {
    let mut sandbox = sandbox(&Value::Null);
    sandbox["permissions"]["network"] = json!("enabled");
    let proxy = json!({"enabled": true, "enableSocks5": true, "enableSocks5Udp": true, "allowUpstreamProxy": true,
        "dangerouslyAllowAllUnixSockets": false, "mode": "full", "domains": domains, "unixSockets": null,
        "allowLocalBinding": false});
    json!({"sandbox": sandbox, "enforceManagedNetwork": true, "managedNetwork": null, "networkProxy": {
        "proxy": with(proxy, more), "auditMetadata": {"conversationId": "c"}, "environmentId": "remote",
        "executionId": "e"}})
}

#[test]
fn the_network_that_the_base_client_manages_is_enforced() {
    // On a TCP port without a token, which gives no network to confined processes.
    let (server, host) = (Server::start(), Host::start());
    let client = server.client();
    let port = host.port();
    let script = format!(
        "ask 'GET http://127.0.0.1:{port}/ HTTP/1.1\\r\\n\\r\\n'; ask 'GET http://bad.example.org/ HTTP/1.1\\r\\n\\r\\n'; \
         ask 'GET http://other.example/ HTTP/1.1\\r\\n\\r\\n'"
    );
    let domains = json!({"127.0.0.1": "allow", "**.example.org": "allow", "bad.example.org": "deny"});
    let output = run(&client, "p", &script, managed(&domains, json!({})));
    let text = output.text();
    assert!(text.contains(&format!("reached 127.0.0.1:{port}")), "{text}");
    let names: Vec<_> = denied(&output).into_iter().map(|(host, ..)| host).collect();
    assert_eq!(names, ["bad.example.org", "other.example"], "{text}");
    let direct = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    assert_ne!(run(&client, "direct", &direct, managed(&json!({"*": "allow"}), json!({}))).exit_code(), 0);

    for (start, reason) in [
        (managed(&json!({"a.org": "ask"}), json!({})), "unknown variant `ask`"),
        (managed(&json!({}), json!({"mode": "lax"})), "unknown variant `lax`"),
        (managed(&json!({}), json!({"enableSocks5": "no"})), "expected a boolean"),
        (managed(&json!({}), json!({"enabled": false})), "is not enabled"),
        (managed(&json!({}), json!({"mitm": true})), "unknown field `mitm`"),
        (with(managed(&json!({}), json!({})), json!({"networkProxy": null})), "without a `networkProxy`"),
        (with(managed(&json!({}), json!({})), json!({"networkProxy": {}})), "missing field `proxy`"),
    ] {
        let error = client.call("process/start", with(start_params("x", &["true"]), start)).unwrap_err();
        assert_eq!(error["data"]["kind"], "sandboxUnavailable", "{error}");
        let hint = error["data"]["hint"].as_str().expect("a hint");
        assert!(hint.contains(reason), "{reason}: {hint}");
    }
}

#[test]
fn a_floor_limits_the_hosts_of_every_client() {
    let host = Host::start();
    let (directory, port) = (tempfile::tempdir().expect("a directory can be made"), host.port());
    let profile = directory.path().join("profile.toml");
    let text = format!("read = ['/']\nnetwork = ['127.0.0.1:{port}', '*.example.org']\n");
    fs::write(&profile, text).expect("a file can be written");
    let server = Server::unix(&["--sandbox", &profile.display().to_string()]);
    let client = server.client();
    let reached = format!("ask 'GET http://127.0.0.1:{port}/ HTTP/1.1\\r\\n\\r\\n'");
    let refused = "ask 'GET http://other.example/ HTTP/1.1\\r\\n\\r\\n'";
    let script = format!("{reached}; {refused}");
    let mut open = sandbox(&Value::Null);
    open["permissions"]["network"] = json!("enabled");
    for (process, more) in [
        ("nothing asked", json!({})),
        ("more asked", allow(&["*", "127.0.0.1", "other.example"])),
        ("all asked", json!({"sandbox": open})),
    ] {
        let output = run(&client, process, &script, more);
        let text = output.text();
        assert!(text.contains(&format!("reached 127.0.0.1:{port}")), "{process}: {text}");
        assert_eq!(denied(&output), [("other.example".to_owned(), 80, 1)], "{process}");
    }
    let output = run(&client, "less asked", &script, allow(&["other.example"]));
    assert_eq!(denied(&output).len(), 2, "{}", output.text());
    let output = run(&client, "none asked", &reached, json!({"sandbox": sandbox(&Value::Null)}));
    assert_ne!(output.exit_code(), 0, "{}", output.text());

    let server = Server::unix(&["--sandbox", "read-only"]);
    let client = server.client();
    let output = run(&client, "p", &reached, allow(&["127.0.0.1"]));
    assert_ne!(output.exit_code(), 0, "a floor without a network grants none: {}", output.text());
}
