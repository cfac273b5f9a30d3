//! Writers that race for one file: there is one winner, and the others hear of it.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    sync::Barrier,
    thread,
};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::{Client, Place, Server, encode, with};

const ROUNDS: usize = 40;

fn write(client: &Client, uri: &str, content: &str, more: Value) -> Result<Value, Value> {
    client.call("fs/writeFile", with(json!({"path": uri, "dataBase64": encode(content)}), more))
}

fn hash(content: impl AsRef<[u8]>) -> String {
    let digits: String = Sha256::digest(content.as_ref()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// Lets both write at the same moment; returns what the one winner wrote.
fn race(first: (&Client, &str), second: (&Client, &str), more: &Value) -> &'static str {
    let start = Barrier::new(2);
    let write = |(client, uri): (&Client, &str), content| {
        start.wait();
        write(client, uri, content, more.clone())
    };
    let (first, second) = thread::scope(|scope| {
        let second = scope.spawn(|| write(second, "second"));
        (write(first, "first"), second.join().expect("a writer answers"))
    });
    let (winner, loser) = match (first, second) {
        (Ok(_), Err(loser)) => ("first", loser),
        (Err(loser), Ok(_)) => ("second", loser),
        both => panic!("there is one winner: {both:?}"),
    };
    assert_eq!(loser["data"]["kind"], "contentChanged", "{loser}");
    winner
}

/// A place with a directory that has two names.
fn two_names() -> Place {
    let place = Place::new();
    place.make(&["directory"]);
    place.link("directory", "link");
    place
}

#[test]
fn a_new_file_has_one_winner_whatever_the_name_of_its_directory() {
    let (server, place) = (Server::start(), two_names());
    let (first, second) = (server.client(), server.client());
    for (round, atomic) in (0..ROUNDS).zip([true, false].into_iter().cycle()) {
        let uris = ["directory", "link"].map(|directory| place.uri(&format!("{directory}/{round}")));
        let more = json!({"atomic": atomic, "ifMatch": "absent"});
        let winner = race((&first, &uris[0]), (&second, &uris[1]), &more);
        assert_eq!(place.read(&format!("directory/{round}")), winner);
    }
    assert_eq!(place.names("directory").len(), ROUNDS, "nothing is left behind");
}

#[test]
fn a_new_file_has_one_winner_among_two_servers() {
    let (servers, place) = ([Server::start(), Server::start()], two_names());
    let clients = [servers[0].client(), servers[1].client()];
    for round in 0..ROUNDS {
        let uri = place.uri(&format!("directory/{round}"));
        let winner =
            race((&clients[0], &uri), (&clients[1], &uri), &json!({"atomic": true, "ifMatch": "absent"}));
        assert_eq!(place.read(&format!("directory/{round}")), winner);
    }
    assert_eq!(place.names("directory").len(), ROUNDS, "nothing is left behind");
}

#[test]
fn a_new_file_never_replaces_one_that_a_program_of_the_host_makes() {
    let (server, place) = (Server::start(), two_names());
    let client = server.client();
    for round in 0..ROUNDS {
        let (name, start) = (format!("directory/{round}"), Barrier::new(2));
        let (path, uri) = (place.path(&name), place.uri(&name));
        let (ours, theirs) = thread::scope(|scope| {
            let theirs = scope.spawn(|| {
                start.wait();
                let made = OpenOptions::new().write(true).create_new(true).open(&path);
                made.and_then(|mut file| file.write_all(b"theirs"))
            });
            start.wait();
            let ours = write(&client, &uri, "ours", json!({"atomic": true, "ifMatch": "absent"}));
            (ours, theirs.join().expect("a program ends"))
        });
        assert_ne!(ours.is_ok(), theirs.is_ok(), "there is one winner: {ours:?}, {theirs:?}");
        assert_eq!(place.read(&name), if ours.is_ok() { "ours" } else { "theirs" });
    }
}

#[test]
fn a_changed_file_has_one_winner_among_the_clients_of_a_server() {
    let (server, place) = (Server::start(), two_names());
    let (first, second) = (server.client(), server.client());
    let uris = [place.uri("directory/file"), place.uri("link/file")];
    for atomic in [true, false] {
        for round in 0..ROUNDS {
            let content = format!("round {round}");
            place.write("directory/file", &content);
            let more = json!({"atomic": atomic, "ifMatch": hash(&content)});
            let winner = race((&first, &uris[0]), (&second, &uris[1]), &more);
            assert_eq!(place.read("directory/file"), winner);
        }
    }
}

#[test]
fn a_conditional_write_detects_a_file_moved_over_it_by_another_client() {
    let (server, place) = (Server::start(), two_names());
    let (first, second) = (server.client(), server.client());
    for round in 0..ROUNDS {
        place.write("directory/file", "old");
        place.write("directory/upload", "uploaded");
        let start = Barrier::new(2);
        thread::scope(|scope| {
            let edit = scope.spawn(|| {
                start.wait();
                write(
                    &first,
                    &place.uri("directory/file"),
                    "edited",
                    json!({"atomic": true, "ifMatch": hash("old")}),
                )
            });
            start.wait();
            let moved =
                json!({"sourcePath": place.uri("link/upload"), "destinationPath": place.uri("link/file")});
            second.call("fs/rename", moved).expect("a move needs nobody's leave");
            let _ = edit.join().expect("a writer answers");
        });
        // Before the edit the move is replaced only by who has seen it; after the edit it replaces.
        assert_eq!(place.read("directory/file"), "uploaded", "round {round}");
    }
    fs::metadata(place.path("directory")).expect("the directory is still there");
}
