//! No secret of a server reaches its children.

use std::{fs, process::Stdio};

use serde_json::json;

use crate::support::{Client, Pki, Server, program, start_params, with};

const TOKEN: &str = "rV7xq0Dk2mYw9ZsT4uJc1A";
const JWT_SECRET: &str = "a shared secret of at least thirty-two bytes";
const BEARER_VARIABLE: &str = "bearer-from-the-environment-5512";

/// What a child can find out about itself and its parent without opening files of the server.
const LOOK_AROUND: &str = "cat /proc/self/environ /proc/self/cmdline /proc/$PPID/cmdline | tr '\\0' '\\n'; echo; \
                           echo descriptors; ls /proc/self/fd";

#[test]
fn children_get_three_descriptors_and_no_secret() {
    let (pki, _authority) = Pki::new();
    let key = fs::read_to_string(pki.path("server.key")).expect("the key of the server");
    let key_line = key.lines().nth(1).expect("a key has lines").to_owned();
    let [tokens, jwt, audit, config] = ["tokens", "jwt", "audit", "server.toml"].map(|name| pki.arg(name));
    fs::write(&tokens, format!("{TOKEN} name=ann\n")).expect("a file can be written");
    fs::write(&jwt, JWT_SECRET).expect("a file can be written");
    let settings = format!(
        "listen = ['ws://127.0.0.1:0', 'wss://127.0.0.1:0']\n\
         [tls]\ncert = 'server.pem'\nkey = 'server.key'\n\
         [auth]\ntoken_file = '{tokens}'\n[auth.jwt]\nsecret_file = '{jwt}'\n\
         [audit]\nfile = '{audit}'\n[metrics]\nlisten = '127.0.0.1:0'\n"
    );
    fs::write(&config, settings).expect("a file can be written");
    let mut command = program(&["serve", "--config", &config]);
    // What looks like a secret in the environment of the server stays there, unless a client asks for it by policy.
    command
        .env("BUILD_API_TOKEN", BEARER_VARIABLE)
        .env("CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN", BEARER_VARIABLE);
    command.stdin(Stdio::null());
    let server = Server::launch(command, 2);
    let plain = server.addresses().iter().find(|url| url.starts_with("ws://")).expect("a plain port");
    let authorization = format!("Bearer {TOKEN}");
    let client = Client::connect_with_headers(plain, &[("Authorization", &authorization)]);
    client.initialize();

    let policies = [
        ("nothing", json!({})),
        (
            "all",
            json!({"envPolicy": {"inherit": "all", "ignoreDefaultExcludes": false, "exclude": [], "set": {}, "includeOnly": []}}),
        ),
    ];
    for (name, policy) in policies {
        for (kind, tty) in [("pipes", false), ("terminal", true)] {
            let id = format!("{name} {kind}");
            let more = with(policy.clone(), json!({"tty": tty, "limits": {"openFiles": 64}}));
            client
                .call("process/start", with(start_params(&id, &["/bin/sh", "-c", LOOK_AROUND]), more))
                .expect("a start");
            let output = client.collect(&id);
            let text =
                String::from_utf8([output.stdout, output.pty].concat()).expect("text").replace('\r', "");
            let (seen, descriptors) = text.split_once("descriptors\n").expect("both parts");
            for secret in [TOKEN, JWT_SECRET, BEARER_VARIABLE, &key_line] {
                assert!(!seen.contains(secret), "{id}: a child sees `{secret}` in:\n{seen}");
            }
            // The last one is the directory that is being listed.
            let descriptors: Vec<_> = descriptors.split_whitespace().collect();
            assert_eq!(descriptors, ["0", "1", "2", "3"], "{id}");
        }
    }
}
