//! The real client at work through this server, with a model whose every word is ours.
//!
//! What is asserted is what its user would notice: what the model is told, which files are there, which processes are left.
//! The client is installed from the npm registry by `scripts/codex/install`; CONTRIBUTING.md says more.

mod breakable_link;
mod client;
mod http;
mod model;
mod remote;
#[path = "../support/mod.rs"]
mod support;
mod tools;

use std::{net::TcpListener, thread, time::Duration};

use serde_json::json;

use breakable_link::Cable;
use client::{Client, Setup};
use http::{Request, respond};
use remote::Remote;
use support::Watched;
use tools::{Heard, Tools};

#[test]
fn commands_run_on_the_server_and_report_their_exit() {
    let remote = Remote::start();
    let mut client = Client::start(&remote);

    let reply = client.run("echo $PLACE; echo $HOME; pwd", json!({}));
    let expected = format!("remote\n{}\n{}\n", remote.home().display(), remote.workspace().display());
    assert_eq!((reply.exit_code(), reply.output()), (Some(0), expected.as_str()));

    let reply = client.run("echo to stderr >&2; exit 3", json!({}));
    assert_eq!((reply.exit_code(), reply.output()), (Some(3), "to stderr\n"));

    let reply = client.run("kill -9 $$", json!({}));
    assert_eq!((reply.exit_code(), reply.output()), (Some(137), ""));

    let reply = client.run("cat; pwd; seq 1 4000", json!({"workdir": "/", "max_output_tokens": 20_000}));
    let numbers: String = (1..=4000).map(|number| format!("{number}\n")).collect();
    assert_eq!((reply.exit_code(), reply.output()), (Some(0), format!("/\n{numbers}").as_str()));

    client.finish();
    remote.stop();
}

#[test]
fn a_client_with_a_token_or_a_jwt_is_admitted() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    std::fs::write(&secret, "Jf8zQ1m0Vt6rXc3LbH9wYd2KsN7pEaGu").unwrap();
    let secret = secret.to_str().unwrap();
    let print = |arguments: &[&str]| support::finish(&[&["token", "new"], arguments].concat()).stdout;
    let line = print(&["--name", "codex"]);
    let tokens = directory.path().join("tokens");
    std::fs::write(&tokens, &line).unwrap();
    let jwt = print(&["--secret-file", secret, "--subject", "codex", "--issuer", "us", "--expires", "1h"]);
    let capability = ["--ws-auth", "capability-token", "--ws-token-file", tokens.to_str().unwrap()];
    let signed = ["--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", secret, "--ws-issuer", "us"];
    for (flags, token) in [(&capability[..], &line), (&signed[..], &jwt)] {
        let remote = Remote::with_flags(flags);
        let token = token.split_whitespace().next().unwrap();
        let mut client = Client::set_up(&remote, &Setup { token: Some(token), ..Setup::of(&remote) });
        let reply = client.run("echo $PLACE", json!({}));
        assert_eq!((reply.exit_code(), reply.output()), (Some(0), "remote\n"));
        client.finish();
        remote.stop();
    }
}

#[test]
fn an_interactive_process_receives_input_and_ctrl_c() {
    let remote = Remote::start();
    let mut client = Client::start(&remote);

    let command = "trap 'exit 5' INT; stty size; read -r name; echo \"hello $name\"; sleep 1000";
    let mut running = client.run_until("24 80\r\n", command, json!({"tty": true}));
    client.type_until("hello world\r\n", &mut running, "world\n");
    client.begin_waiting(&running, "\u{3}");
    assert_eq!(client.ended(running), (Some(5), "24 80\r\nworld\r\nhello world\r\n^C".to_owned()));

    client.finish();
    remote.stop();
}

#[test]
fn a_patch_creates_files_in_new_directories() {
    let remote = Remote::start();
    let mut client = Client::start(&remote);

    let reply = client.patch(&["*** Add File: new/place/one.txt", "+first", "+second"]);
    assert!(reply.text().contains("Success"), "{reply:?}");
    assert_eq!(remote.files(), ["new/place/one.txt"]);
    assert_eq!(remote.read("new/place/one.txt"), "first\nsecond\n");
    remote.assert_created("new/place/one.txt");

    client.finish();
    remote.stop();
}

#[test]
fn a_patch_changes_removes_and_moves_files() {
    let remote = Remote::start();
    remote.write("changed.txt", "a\nb\nc\n");
    remote.write("removed.txt", "gone\n");
    remote.write("before.txt", "m\nn\n");
    let mut client = Client::start(&remote);

    let reply = client.patch(&[
        "*** Update File: changed.txt",
        "@@",
        " a",
        "-b",
        "+B",
        " c",
        "*** Delete File: removed.txt",
        "*** Update File: before.txt",
        "*** Move to: elsewhere/after.txt",
        "@@",
        "-m",
        "+M",
    ]);
    assert!(reply.text().contains("Success"), "{reply:?}");
    assert_eq!(remote.files(), ["changed.txt", "elsewhere/after.txt"]);
    assert_eq!(remote.read("changed.txt"), "a\nB\nc\n");
    assert_eq!(remote.read("elsewhere/after.txt"), "M\nn\n");

    let reply = client.patch(&["*** Update File: missing.txt", "@@", "-x", "+y"]);
    assert!(reply.text().contains("missing.txt") && !reply.text().contains("Success"), "{reply:?}");
    assert_eq!(remote.files(), ["changed.txt", "elsewhere/after.txt"]);

    client.finish();
    remote.stop();
}

#[test]
fn a_process_outlives_its_first_poll_and_is_polled_again() {
    let remote = Remote::start();
    let mut client = Client::start(&remote);

    let command = "echo begun; until [ -e go ]; do sleep 0.01; done; echo ended; exit 7";
    let running = client.run_until("begun\n", command, json!({}));
    assert_eq!(client.run("echo meanwhile", json!({})).output(), "meanwhile\n");
    client.begin_waiting(&running, "");
    remote.write("go", "");
    assert_eq!(client.ended(running), (Some(7), "begun\nended\n".to_owned()));

    client.finish();
    remote.stop();
}

#[test]
fn running_processes_end_with_the_client() {
    let remote = Remote::start();
    let mut client = Client::start(&remote);

    // Their numbers are those of their own namespace, but the pipe that they hold open is ours as well.
    let processes = remote.held_by_processes("held");
    client.run_until("\n", "exec 3>held; sleep 1000 & echo ready; wait", json!({}));
    assert!(!processes.ended_within(Duration::ZERO), "they run");

    client.finish();
    processes.assert_ends();
    remote.stop();
}

#[test]
fn stdio_tools_run_on_the_server() {
    let remote = Remote::with_variable("FLAVOUR", "remote");
    remote.write("tools.sh", tools::SCRIPT);
    let config = format!(
        r#"
        [mcp_servers.tools]
        environment_id = "remote"
        command = "sh"
        args = ["tools.sh"]
        default_tools_approval_mode = "approve"
        cwd = "{}"
        env_vars = [{{ name = "FLAVOUR", source = "remote" }}]
        "#,
        remote.workspace().display()
    );
    let mut client = Client::set_up(&remote, &Setup { config: &config, ..Setup::of(&remote) });

    let reply = client.call_in("mcp__tools", "whoami", &json!({}));
    let line = reply.output().trim_start();
    let (process, rest) = line.split_once(' ').expect("the tool tells three things");
    assert_eq!(rest, format!("{} remote", remote.home().display()));
    let process = Watched::printed(process);
    assert!(!process.ended_within(Duration::ZERO), "the tool server waits for the next call");

    client.finish();
    process.assert_ends();
    remote.stop();
}

#[test]
fn http_tools_are_called_by_the_server_with_its_credentials() {
    let tools = Tools::listen();
    let remote = Remote::with_variable("TOOLS_PASS", "open sesame");
    let config = format!("{}\nenvironment_id = \"remote\"", tools.config());
    let mut client = Client::set_up(&remote, &Setup { config: &config, ..Setup::of(&remote) });

    let reply = client.call_in("mcp__tools", "shout", &json!({"text": "quiet"}));
    assert_eq!(reply.output().trim_start(), "QUIET");
    client.finish();

    // The client waits for messages of the tool server whenever it likes.
    let mut heard = tools.heard();
    heard.retain(|request| request.method != "GET");
    let methods = ["initialize", "notifications/initialized", "tools/list", "tools/call", "DELETE"];
    let mut expected = Vec::from(methods.map(|method| Heard {
        method: method.to_owned(),
        authorization: Some("Bearer open sesame".to_owned()),
    }));
    // It says goodbye while it ends, and on a busy machine it may have ended before that was sent.
    expected.truncate(heard.len().max(4));
    assert_eq!(heard, expected);
    remote.stop();
}

#[test]
fn tools_configured_on_the_remote_host_are_found() {
    let tools = Tools::listen();
    let remote = Remote::with_variable("TOOLS_PASS", "open sesame");
    remote.configure(&tools.config());
    let mut client = Client::start(&remote);

    let reply = client.call_in("mcp__tools", "shout", &json!({"text": "found"}));
    assert_eq!(reply.output().trim_start(), "FOUND");
    assert_eq!(tools.heard()[0].authorization.as_deref(), Some("Bearer open sesame"));

    client.finish();
    remote.stop();
}

#[test]
fn the_client_finds_the_project_instructions() {
    let remote = Remote::start();
    remote.write(".git/HEAD", "ref: refs/heads/main\n");
    remote.write("AGENTS.md", "Speak in rhymes.\n");
    let skill = "---\nname: juggle\ndescription: Keeps several balls in the air.\n---\nThrow, then catch.\n";
    remote.write(".agents/skills/juggle/SKILL.md", skill);
    let client = Client::start(&remote);

    let told = client.conversation().to_string();
    assert!(told.contains("Speak in rhymes."), "the instructions reach the model");
    assert!(told.contains("Keeps several balls in the air."), "the skill reaches the model");

    client.finish();
    remote.stop();
}

#[test]
fn a_read_only_model_cannot_write() {
    let remote = Remote::start();
    let mut client = Client::set_up(&remote, &Setup { sandbox: "read-only", ..Setup::of(&remote) });

    let reply = client.run("echo begun; touch written", json!({}));
    assert_ne!(reply.exit_code(), Some(0), "the model is told: {reply:?}");
    assert!(format!("{reply:?}").contains("begun"), "what it may do is done: {reply:?}");
    client.patch(&["*** Add File: patched", "+text"]);
    assert_eq!(remote.files(), [""; 0]);

    client.finish();
    remote.stop();
}

#[test]
fn a_client_managed_network_is_limited_to_its_domains() {
    let web = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = web.local_addr().expect("a listener has an address");
    let remote = Remote::start();
    let config = r#"
[sandbox_workspace_write]
network_access = true

[features.network_proxy]
enabled = true

[features.network_proxy.domains]
"127.0.0.1" = "allow"
"*.example.org" = "allow"
"#;
    let mut client = Client::set_up(&remote, &Setup { config, ..Setup::of(&remote) });
    let answering = thread::spawn(move || {
        let (stream, _) = web.accept().expect("a listener accepts");
        let request = Request::read(&stream).expect("a request");
        respond(&stream, "200 OK", &[], request.line.as_bytes());
    });
    let ask = |host: &str| {
        format!(
            "bash -c 'exec 3<>/dev/tcp/127.0.0.1/28282; printf \"GET http://{host}/page HTTP/1.1\\r\\n\\r\\n\" >&3; cat <&3'"
        )
    };
    let reply = client.run(&ask(&address.to_string()), json!({}));
    assert!(reply.text().contains("GET /page HTTP/1.1"), "{reply:?}");
    answering.join().expect("the host was asked");
    let reply = client.run(&ask("other.example"), json!({}));
    assert!(reply.text().contains("other.example:80 is not in the allow-list"), "{reply:?}");
    let direct = format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{}'", address.port());
    assert_ne!(client.run(&direct, json!({})).exit_code(), Some(0));

    client.finish();
    remote.stop();
}

#[test]
fn a_disconnect_loses_no_output_and_no_input() {
    let remote = Remote::start();
    let cable = Cable::to(remote.url());
    let mut client = Client::set_up(&remote, &Setup { url: &cable.url(), ..Setup::of(&remote) });
    let said = remote.bell("said");

    let command = "stty -echo; seq 1 100; until [ -e cut ]; do sleep 0.01; done; seq 101 1000; echo >said; \
                   read -r word; echo $word";
    let running = client.run_until("\n100\r\n", command, json!({"tty": true}));
    let cut = cable.cut();
    remote.write("cut", "");
    said.wait();
    client.begin_waiting(&running, "heard\n");
    drop(cut);
    let numbers: String = (1..=1000).map(|number| format!("{number}\r\n")).collect();
    assert_eq!(client.ended(running), (Some(0), format!("{numbers}heard\r\n")));

    client.finish();
    remote.stop();
}

#[test]
fn a_model_works_through_the_tools_of_remex_and_finds_its_processes_again() {
    let remote = Remote::start();
    let config = format!(
        r#"
        [mcp_servers.hands]
        environment_id = "remote"
        command = "{}"
        args = ["mcp", "--on", "{}"]
        cwd = "{}"
        default_tools_approval_mode = "approve"
        "#,
        env!("CARGO_BIN_EXE_remex"),
        remote.url(),
        remote.workspace().display()
    );
    let setup = || Setup { config: &config, ..Setup::of(&remote) };
    let hands = "mcp__hands";
    let mut client = Client::set_up(&remote, &setup());
    let reply = client.call_in(hands, "run_command", &json!({"command": "echo $((6 * 7)); exit 3"}));
    assert!(reply.text().contains("42") && reply.text().contains("exit code 3"), "{reply:?}");
    let file = remote.workspace().join("notes");
    client.call_in(hands, "write_file", &json!({"path": file, "content": "one\ntwo\n"}));
    let edits = json!({"path": file, "edits": [{"old": "two", "new": "2"}]});
    let reply = client.call_in(hands, "edit_file", &edits);
    assert!(reply.text().contains("\"replacements\":1"), "{reply:?}");
    assert_eq!(remote.read("notes"), "one\n2\n");
    let waiting = json!({
        "command": "echo before; until [ -e go ]; do sleep 0.01; done; echo after", "name": "server",
        "cwd": remote.workspace(), "wait_seconds": 0.2,
    });
    let reply = client.call_in(hands, "run_command", &waiting);
    assert!(reply.text().contains("before") && reply.text().contains("still running"), "{reply:?}");
    // Killed in the middle of its task.
    drop(client);

    let mut client = Client::set_up(&remote, &setup());
    let reply = client.call_in(hands, "list_processes", &json!({}));
    assert!(reply.text().contains("\"process\":\"server\",\"running\":true"), "{reply:?}");
    remote.write("go", "");
    let reply = client.call_in(hands, "read_output", &json!({"process": "server"}));
    assert!(reply.text().contains("before") && reply.text().contains("after"), "{reply:?}");
    assert!(reply.text().contains("`server` ended with exit code 0"), "{reply:?}");
    client.finish();
    remote.stop();
}
