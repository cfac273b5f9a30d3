//! A user whose local remex server has background processes.

use std::{fs, os::unix::fs::DirBuilderExt as _, process::Command};

use serde_json::{Value, json};

use crate::{
    home::{Home, Said},
    screen::Screen,
    support::{Client, Server},
};

/// A user, the user's own server, and the client that started something there.
pub(crate) struct UserSession {
    pub(crate) home: Home,
    pub(crate) server: Server,
    pub(crate) client: Client,
}

impl UserSession {
    /// Starts the server, and opens a session of this name on it.
    pub(crate) fn open(session: &str) -> Self {
        let home = Home::new();
        let directory = home.own_socket().parent().unwrap().to_owned();
        fs::DirBuilder::new().mode(0o700).create(directory).unwrap();
        let mut serve: Command =
            home.remex(&["serve", "--listen", &format!("unix://{}", home.own_socket().display())]);
        serve.stdin(std::process::Stdio::null());
        let server = Server::launch(serve, 1);
        let client = server.connect();
        client.initialize_with(
            json!({"clientName": "left", "resumeSessionId": null, "sessionName": session, "detachTtlMs": 600_000}),
        );
        Self { home, server, client }
    }

    /// Starts `sh -c script` and waits until it has said `ready`.
    pub(crate) fn ready(&self, name: &str, script: &str) {
        self.ready_with(name, script, json!({}));
    }

    /// The same, started with further parameters.
    pub(crate) fn ready_with(&self, name: &str, script: &str, more: Value) {
        self.client.start(name, &["/bin/sh", "-c", script], more);
        self.client.wait_for_output(name, "ready");
    }

    /// Starts a script that says `ready`, then waits for a line on its input to continue.
    pub(crate) fn waiting(&self, name: &str, script: &str) {
        self.ready_with(name, &format!("echo ready; read go; {script}"), json!({"pipeStdin": true}));
    }

    /// Lets a process continue that waits for its input.
    pub(crate) fn go(&self, name: &str) {
        let chunk = crate::support::encode("\n");
        let write = json!({"processId": name, "chunk": chunk, "writeId": format!("go {name}")});
        self.client.call("process/write", write).unwrap();
    }

    pub(crate) fn say(&self, args: &[&str]) -> Said {
        self.home.say(args)
    }

    pub(crate) fn screen(&self, args: &[&str]) -> Screen {
        Screen::remex(&self.home, args)
    }
}

/// Returns what a command says that succeeds and has nothing to say on stderr.
pub(crate) fn out(said: Said) -> String {
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
    said.out
}
