//! Servers whose own sandbox confines every client, whatever it asks for.

use serde_json::{Value, json};

use super::{Confined, at, sandbox, special, workspace};
use crate::support::{Guarded, Place, Server, finish, start_params, token_of, uri, with};

/// Returns what clients send that ask for nothing, or for everything.
fn unconfined(place: &Place) -> [Value; 3] {
    let everything = json!({"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"});
    [Value::Null, everything, sandbox(place, &[special("write", "root")])]
}

#[test]
fn the_floor_of_a_server_confines_every_client() {
    let place = workspace();
    let work = place.path("work");
    let work = work.to_str().expect("the path is text");
    let server = Server::serve(&["--sandbox", "workspace-write", "--workspace", work]);
    let client = server.client();
    for sandbox in unconfined(&place) {
        let confined = Confined { client: &client, place: &place, sandbox };
        confined.done("fs/writeFile", confined.write("work/file"));
        assert_eq!(confined.read("outside/file"), "outside");
        confined.denied("fs/writeFile", confined.write("outside/file"));
        confined.denied("fs/writeFile", confined.write("work/out/file"));
        confined.denied("fs/writeFile", confined.write("work/.git/config"));
        confined
            .denied("fs/open", json!({"handleId": "h", "path": place.uri("outside/file"), "mode": "write"}));
    }
    // A client may ask for less.
    let less = sandbox(&place, &[at("read", &place.uri("work/dir"))]);
    let confined = Confined { client: &client, place: &place, sandbox: less };
    assert_eq!(confined.read("work/dir/inner"), "inner");
    confined.denied("fs/writeFile", confined.write("work/dir/inner"));
    confined.denied("fs/readFile", json!({"path": place.uri("outside/file")}));
    // A process has the same floor, and what it is relative to is not the client's to choose.
    let script = format!(
        "cd '{0}'; echo x > work/made || echo no work; for place in outside work/.git; do echo x > $place/made || echo no $place; done",
        place.path("").display()
    );
    for (number, sandbox) in unconfined(&place).into_iter().enumerate() {
        let id = number.to_string();
        let more = json!({"sandbox": sandbox, "cwd": place.uri("outside"), "env": {"TMPDIR": place.path("outside")}});
        client
            .call("process/start", with(start_params(&id, &["/bin/sh", "-c", &script]), more))
            .expect("a start");
        assert_eq!(client.collect(&id).text(), "no outside\nno work/.git\n");
        assert!(place.path("work/made").exists());
        std::fs::remove_file(place.path("work/made")).expect("it exists");
    }
}

#[test]
fn a_profile_in_a_file_is_the_floor_of_a_server() {
    let place = workspace();
    let profile = place.write(
        "profile.toml",
        format!(
            "read = ['/', ':workspace/dir']\nwrite = [':workspace']\ndeny = ['{}', '**/*.env']\n",
            place.path("work/private").display()
        ),
    );
    let (profile, work) = (profile.display().to_string(), place.path("work").display().to_string());
    let server = Server::serve(&["--sandbox", &profile, "--workspace", &work]);
    let client = server.client();
    for sandbox in unconfined(&place) {
        let confined = Confined { client: &client, place: &place, sandbox };
        confined.done("fs/writeFile", confined.write("work/file"));
        confined.denied("fs/writeFile", confined.write("work/dir/inner"));
        confined.denied("fs/readFile", json!({"path": place.uri("work/private/key")}));
        confined.denied("fs/readFile", json!({"path": place.uri("work/conf/prod.env")}));
        confined.denied("fs/watch", json!({"watchId": 1, "path": place.uri("work/private")}));
    }
    let missing = json!({"watchId": 1, "missing": [place.uri("work/private/new")]});
    let error = client.call("fs/watchMissing", missing).unwrap_err();
    assert_eq!(error["data"]["kind"], "permissionDenied", "{error}");
    let config = json!({"cwd": uri(&place.path("work")), "configPaths": [["a"]], "requirementsPaths": []});
    let error = client.call("environmentConfig/read", config).unwrap_err();
    assert_eq!(error["data"]["kind"], "permissionDenied", "{error}");
}

#[test]
fn the_floor_of_a_credential_confines_its_file_requests() {
    let place = workspace();
    let line = format!("{} name=alice scope=all,sandbox=workspace-write\n", token_of("alice"));
    let work = place.path("work").display().to_string();
    let flags = ["--workspace", &*work];
    let server =
        Guarded::start("tokens", &line, &["--ws-auth", "capability-token", "--ws-token-file"], &flags);
    let client = server.client(&token_of("alice"));
    for sandbox in unconfined(&place) {
        let confined = Confined { client: &client, place: &place, sandbox };
        confined.done("fs/writeFile", confined.write("work/file"));
        confined.denied("fs/writeFile", confined.write("outside/file"));
        // The tokens of others would end the floor.
        let error =
            client.call("fs/readFile", json!({"path": uri(&server.file), "sandbox": &confined.sandbox}));
        assert_eq!(error.unwrap_err()["data"]["kind"], "permissionDenied");
    }
}

#[test]
fn an_unusable_floor_keeps_the_server_from_starting() {
    let place = Place::new();
    place.write("profile.toml", "reed = ['/']");
    let profile = place.path("profile.toml").display().to_string();
    for (flags, message) in [
        (
            vec!["--sandbox", "workspace-write"],
            "the sandbox `workspace-write` is relative to a workspace, and none is named",
        ),
        (vec!["--sandbox", "/does/not/exist"], "cannot read `/does/not/exist`"),
        (vec!["--sandbox", &*profile], "unknown key `reed`"),
    ] {
        let arguments: Vec<&str> =
            ["serve", "--listen", "ws://127.0.0.1:0"].into_iter().chain(flags).collect();
        let finished = finish(&arguments);
        assert!(!finished.status.success(), "{message}");
        assert!(finished.stderr.contains(message), "{}", finished.stderr);
    }
}
