//! Open files, in blocks; what they cost; and what waits for what.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

use crate::support::{Client, Place, Server, decode, encode};

const MIB: usize = 1 << 20;

fn open(client: &Client, handle: &str, uri: &str, mode: &str) {
    let answer = client.call("fs/open", json!({"handleId": handle, "path": uri, "mode": mode}));
    let answer = answer.expect("the file can be opened");
    assert_eq!(answer, json!({"handleId": handle}));
}

fn close(client: &Client, handle: &str) {
    assert_eq!(client.call("fs/close", json!({"handleId": handle})), Ok(json!({})));
}

fn read_block(client: &Client, handle: &str, offset: u64, len: usize) -> (Vec<u8>, bool) {
    let block = client.call("fs/readBlock", json!({"handleId": handle, "offset": offset, "len": len}));
    let block = block.expect("the block can be read");
    (decode(&block["chunk"]), block["eof"] == true)
}

fn write_block(client: &Client, handle: &str, offset: u64, chunk: &[u8]) -> Result<Value, Value> {
    client.call("fs/writeBlock", json!({"handleId": handle, "offset": offset, "chunk": encode(chunk)}))
}

#[test]
fn a_file_is_read_in_blocks_in_any_order() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    let content: Vec<u8> = (0..=250).cycle().take(2 * MIB).collect();
    place.write("file", &content);
    open(&client, "h", &place.uri("file"), "read");
    assert_eq!(read_block(&client, "h", MIB as u64, MIB), (content[MIB..].to_vec(), false));
    assert_eq!(read_block(&client, "h", 0, MIB), (content[..MIB].to_vec(), false));
    assert_eq!(
        read_block(&client, "h", 2 * MIB as u64, MIB),
        (Vec::new(), true),
        "the end is on the boundary"
    );
    assert_eq!(read_block(&client, "h", 2 * MIB as u64 - 3, 10), (content[2 * MIB - 3..].to_vec(), true));
    assert_eq!(read_block(&client, "h", 1 << 62, 1), (Vec::new(), true));
    close(&client, "h");
    close(&client, "h");
    let gone = client.refusal("fs/readBlock", json!({"handleId": "h", "offset": 0, "len": 1}));
    assert_eq!(gone, (-32004, "unknown file handle `h`".to_owned()));
}

#[test]
fn a_new_file_is_created_with_the_requested_permissions() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    let mode = |name: &str| fs::metadata(place.path(name)).unwrap().permissions().mode() & 0o7777;
    for (name, atomic) in [("written", false), ("replaced", true)] {
        let write = json!({"path": place.uri(name), "dataBase64": "", "atomic": atomic, "createMode": 0o600});
        assert_eq!(client.call("fs/writeFile", write), Ok(json!({})));
        assert_eq!(mode(name), 0o600, "{name}");
    }
    let open = |mode: u32| json!({"handleId": "h", "path": place.uri("opened"), "mode": "write", "createMode": mode});
    assert_eq!(client.call("fs/open", open(0o400)), Ok(json!({"handleId": "h"})));
    assert_eq!(mode("opened"), 0o400);
    // What is there keeps its own.
    close(&client, "h");
    assert_eq!(client.call("fs/open", open(0o600)), Ok(json!({"handleId": "h"})));
    assert_eq!(mode("opened"), 0o400);
    close(&client, "h");
    let refused = client.refusal("fs/open", open(0o1000));
    assert_eq!(
        refused,
        (-32600, "invalid createMode 512: a file is created with 0 to 511 (octal 777)".to_owned())
    );
}

#[test]
fn an_exclusively_opened_file_cannot_be_opened_again() {
    let (server, place) = (Server::start(), Place::new());
    let (client, other) = (server.client(), server.client());
    let open = |name: &str| json!({"handleId": "h", "path": place.uri(name), "mode": "write", "createMode": 0o600, "exclusive": true});
    assert_eq!(client.call("fs/open", open("part")), Ok(json!({"handleId": "h"})));
    let path = place.path("part").display().to_string();
    let refused = (-32603, format!("`{path}` is already open exclusively"));
    assert_eq!(other.refusal("fs/open", open("part")), refused);
    // It is the file that is held, not its name.
    fs::rename(place.path("part"), place.path("whole")).unwrap();
    assert_eq!(other.call("fs/open", open("part")), Ok(json!({"handleId": "h"})));
    close(&client, "h");
    assert_eq!(client.call("fs/open", open("whole")), Ok(json!({"handleId": "h"})));
    close(&client, "h");

    place.write("readable", "");
    fs::set_permissions(place.path("readable"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::hard_link(place.path("whole"), place.path("shared")).unwrap();
    std::os::unix::fs::symlink("nowhere", place.path("link")).unwrap();
    for name in ["readable", "shared", "link"] {
        let path = place.path(name).display().to_string();
        let refused = (-32600, format!("`{path}` does not belong to the server's user alone"));
        assert_eq!(client.refusal("fs/open", open(name)), refused);
    }
    assert!(!place.path("nowhere").exists());
}

#[test]
fn a_handle_refers_to_the_file_that_it_opened() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("file", "old");
    open(&client, "h", &place.uri("file"), "read");
    place.write("new", "new");
    fs::rename(place.path("new"), place.path("file")).unwrap();
    assert_eq!(read_block(&client, "h", 0, 10), (b"old".to_vec(), true));
}

#[test]
fn replacing_truncates_and_writing_keeps_existing_content() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    for name in ["replaced", "written"] {
        place.write(name, "0123456789");
    }
    open(&client, "r", &place.uri("replaced"), "replace");
    open(&client, "w", &place.uri("written"), "write");
    open(&client, "n", &place.uri("new"), "write");
    for handle in ["r", "w", "n"] {
        assert_eq!(write_block(&client, handle, 3, b"abc"), Ok(json!({})));
        close(&client, handle);
    }
    assert_eq!(place.read("replaced"), "\0\0\0abc");
    assert_eq!(place.read("written"), "012abc6789");
    assert_eq!(place.read("new"), "\0\0\0abc");
}

#[test]
fn an_atomic_replacement_becomes_visible_at_close() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("file", "old");
    let atomic = |handle: &str| {
        let params =
            json!({"handleId": handle, "path": place.uri("file"), "mode": "replace", "atomic": true});
        client.call("fs/open", params).unwrap();
    };
    atomic("h");
    write_block(&client, "h", 0, b"new content").unwrap();
    assert_eq!((place.read("file"), place.names("")), ("old".to_owned(), vec!["file".to_owned()]));
    close(&client, "h");
    assert_eq!((place.read("file"), place.names("")), ("new content".to_owned(), vec!["file".to_owned()]));
    atomic("h");
    write_block(&client, "h", 0, b"never").unwrap();
    client.call("fs/close", json!({"handleId": "h", "discard": true})).unwrap();
    assert_eq!(place.read("file"), "new content");
    for mode in ["read", "write"] {
        let params = json!({"handleId": "x", "path": place.uri("file"), "mode": mode, "atomic": true});
        assert_eq!(client.refusal("fs/open", params).0, -32602);
    }
}

#[test]
fn a_disconnect_leaves_the_old_file_and_no_temporary_file() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("file", "old");
    let params = json!({"handleId": "h", "path": place.uri("file"), "mode": "replace", "atomic": true});
    client.call("fs/open", params).unwrap();
    open(&client, "r", &place.uri("file"), "read");
    write_block(&client, "h", 0, b"half").unwrap();
    let descriptors = format!("/proc/{}/fd", server.pid());
    let below = place.path("");
    let open_files = || {
        let links =
            fs::read_dir(&descriptors).unwrap().filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        links.filter(|target| target.starts_with(&below)).count()
    };
    assert!(open_files() >= 2);
    client.cut();
    let other = server.client();
    // Files are closed beside everything else, so this one asks until it is done.
    while open_files() > 0 {
        other.call("environment/status", json!({})).unwrap();
    }
    assert_eq!((place.read("file"), place.names("")), ("old".to_owned(), vec!["file".to_owned()]));
    let gone = other.refusal("fs/readBlock", json!({"handleId": "r", "offset": 0, "len": 1}));
    assert_eq!(gone.0, -32004, "handles belong to the connection");
}

#[test]
fn misuse_of_handles_is_reported_without_side_effects() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("file", "content");
    fs::create_dir(place.path("directory")).unwrap();
    open(&client, "r", &place.uri("file"), "read");
    let long = "é".repeat(17);
    let opening = |handle: &str, path: &str, mode: &str| {
        client.refusal("fs/open", json!({"handleId": handle, "path": path, "mode": mode}))
    };
    let too_long = (-32600, "file handle ID must not exceed 32 bytes".to_owned());
    assert_eq!(opening(&long, &place.uri("file"), "read"), too_long);
    assert_eq!(client.refusal("fs/close", json!({"handleId": long})), too_long);
    let exists = (-32600, "file handle `r` already exists".to_owned());
    assert_eq!(opening("r", &place.uri("other"), "read"), exists);
    let missing = (-32004, "No such file or directory (os error 2)".to_owned());
    assert_eq!(opening("x", &place.uri("missing"), "read"), missing);
    assert_eq!(opening("x", &place.uri("missing/x"), "replace"), missing);
    let directory = place.path("directory");
    let not_a_file = format!("path `{}` is not a file", directory.display());
    assert_eq!(opening("x", &place.uri("directory"), "read"), (-32600, not_a_file));
    let is_directory = (-32603, "Is a directory (os error 21)".to_owned());
    assert_eq!(opening("x", &place.uri("directory"), "replace"), is_directory);
    assert_eq!(opening("x", "file:///dev/null", "replace").0, -32600);
    for len in [0, MIB + 1] {
        let params = json!({"handleId": "r", "offset": 0, "len": len});
        let length = "file read block length must be between 1 and 1048576".to_owned();
        assert_eq!(client.refusal("fs/readBlock", params), (-32600, length));
        let chunk = encode(vec![0; len]);
        let params = json!({"handleId": "r", "offset": 0, "chunk": chunk});
        let length = "file write block length must be between 1 and 1048576".to_owned();
        assert_eq!(client.refusal("fs/writeBlock", params), (-32600, length));
    }
    let wrong_kind = (-32603, "Bad file descriptor (os error 9)".to_owned());
    let params = json!({"handleId": "r", "offset": 0, "chunk": encode("x")});
    assert_eq!(client.refusal("fs/writeBlock", params), wrong_kind);
    open(&client, "w", &place.uri("new"), "replace");
    let params = json!({"handleId": "w", "offset": 0, "len": 1});
    assert_eq!(client.refusal("fs/readBlock", params), wrong_kind);
    let params = json!({"handleId": "w", "offset": u64::MAX, "chunk": encode("x")});
    assert_eq!(client.refusal("fs/writeBlock", params).0, -32600);
    assert_eq!(read_block(&client, "r", 0, 10).0, b"content", "the handle is still open");
}

#[test]
fn an_io_error_closes_the_handle() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("file", "content");
    open(&client, "r", &place.uri("file"), "read");
    let beyond = json!({"handleId": "r", "offset": 1_u64 << 63, "len": 1});
    assert_eq!(client.refusal("fs/readBlock", beyond), (-32600, "Invalid argument (os error 22)".to_owned()));
    assert_eq!(client.refusal("fs/readBlock", json!({"handleId": "r", "offset": 0, "len": 1})).0, -32004);
    open(&client, "r", &place.uri("file"), "read");
}

#[test]
fn a_connection_has_at_most_128_handles() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.connect();
    assert_eq!(client.initialize()["limits"]["handles"], 128);
    place.write("file", "content");
    for number in 0..128 {
        open(&client, &number.to_string(), &place.uri("file"), "read");
    }
    let one_more = json!({"handleId": "one more", "path": place.uri("file")});
    let full = (-32600, "at most 128 file handles may be open per connection".to_owned());
    assert_eq!(client.refusal("fs/open", one_more.clone()), full);
    close(&client, "7");
    client.call("fs/open", one_more).unwrap();
    open(&server.client(), "0", &place.uri("file"), "read");
}

#[test]
fn blocks_may_be_requested_before_open_is_answered() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("file", "content");
    for round in 0..50 {
        let path = place.uri(&format!("copy{round}"));
        let mut asked = vec![
            client.send("fs/open", json!({"handleId": "r", "path": place.uri("file")})),
            client.send("fs/readBlock", json!({"handleId": "r", "offset": 0, "len": 100})),
            client.send("fs/close", json!({"handleId": "r"})),
            client.send("fs/open", json!({"handleId": "w", "path": path, "mode": "replace", "atomic": true})),
        ];
        for (offset, byte) in (0..).zip(b"overwritten") {
            let chunk = encode([*byte; 3]);
            asked.push(
                client.send("fs/writeBlock", json!({"handleId": "w", "offset": offset, "chunk": chunk})),
            );
        }
        asked.push(client.send("fs/close", json!({"handleId": "w"})));
        asked.push(client.send("fs/readFile", json!({"path": path})));
        let answers: Vec<_> = asked.iter().map(|id| client.outcome(id).unwrap()).collect();
        assert_eq!(decode(&answers[1]["chunk"]), b"content");
        assert_eq!(
            decode(&answers.last().unwrap()["dataBase64"]),
            b"overwrittennn",
            "in the order of arrival"
        );
    }
    let asked = [
        client.send("fs/open", json!({"handleId": "r", "path": place.uri("missing")})),
        client.send("fs/readBlock", json!({"handleId": "r", "offset": 0, "len": 100})),
    ];
    for id in &asked {
        assert_eq!(client.outcome(id).unwrap_err()["code"], -32004);
    }
}

#[test]
fn requests_on_overlapping_paths_take_effect_in_order() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    for round in 0..50 {
        let write = |content: &str| json!({"path": place.uri("d/e/file"), "dataBase64": encode(content)});
        let asked = [
            client.send("fs/createDirectory", json!({"path": place.uri("d/e")})),
            client.send("fs/writeFile", write("one")),
            client.send("fs/writeFile", write("two")),
            client.send("fs/readFile", json!({"path": place.uri("d/e/file")})),
            client
                .send("fs/rename", json!({"sourcePath": place.uri("d"), "destinationPath": place.uri("x")})),
            client.send("fs/readFile", json!({"path": place.uri("d/e/file")})),
            client.send("fs/readFile", json!({"path": place.uri("x/e/file")})),
            client.send("fs/remove", json!({"path": place.uri("x")})),
            client.send("fs/getMetadata", json!({"path": place.uri("x/e")})),
        ];
        let answers = asked.map(|id| client.outcome(&id));
        assert_eq!(decode(&answers[3].as_ref().unwrap()["dataBase64"]), b"two", "round {round}");
        assert_eq!(answers[5].as_ref().unwrap_err()["code"], -32004, "round {round}");
        assert_eq!(decode(&answers[6].as_ref().unwrap()["dataBase64"]), b"two", "round {round}");
        assert_eq!(answers[8].as_ref().unwrap_err()["code"], -32004, "round {round}");
    }
}

#[test]
fn four_gigabytes_are_read_in_blocks_with_constant_memory() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    open(&client, "w", &place.uri("file"), "replace");
    let size: u64 = 4 << 30;
    let block: Vec<u8> = (0..=250).cycle().take(MIB).collect();
    write_block(&client, "w", 0, &block).unwrap();
    let before = server.resident_bytes();
    // One block in 16 MiB; the rest of the file are holes.
    for offset in (0..size).step_by(16 * MIB) {
        write_block(&client, "w", offset, &block).unwrap();
    }
    write_block(&client, "w", size - 1, b"!").unwrap();
    close(&client, "w");
    open(&client, "r", &place.uri("file"), "read");
    let asked: Vec<_> = (0..size)
        .step_by(16 * MIB)
        .map(|offset| client.send("fs/readBlock", json!({"handleId": "r", "offset": offset, "len": MIB})))
        .collect();
    for id in asked {
        assert!(decode(&client.outcome(&id).unwrap()["chunk"]) == block);
    }
    assert_eq!(read_block(&client, "r", size - 2, 2), (b"\0!".to_vec(), false));
    // 16 MiB of answers may wait and 8 MiB be built, each beside the bytes that it is made of; the allocator keeps
    // some of what each thread freed.
    let growth = server.peak_bytes().saturating_sub(before);
    assert!(growth < 128 << 20, "grew by {growth} bytes while 512 MiB went through");
    let mut tail = [0; 1];
    File::open(place.path("file")).unwrap().read_exact_at(&mut tail, size - 1).unwrap();
    assert_eq!(&tail, b"!");
}

/// Holds a write lease on a file: opening it hangs until the lease is released.
struct Lease(Child);

impl Lease {
    fn take(path: &Path) -> Self {
        // F_SETLEASE, F_WRLCK; SIGIO asks the holder to give it back, which it does not hear.
        let script = r#"$SIG{IO} = 'IGNORE'; open(F, '+<', $ARGV[0]) or die; fcntl(F, 1024, 1) or die $!;
            $| = 1; print "held\n"; <STDIN>;"#;
        let mut child = Command::new("perl")
            .args(["-e", script])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("perl, which is part of every Debian, runs");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("stdout is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("what perl says is text");
        assert_eq!(line, "held\n", "the file system has leases");
        Self(child)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_hanging_path_blocks_no_other() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.connect();
    client.initialize_with(json!({"clientName": "x", "resumeSessionId": null, "capabilities": ["cancel"]}));
    let path = place.write("stuck", "at last");
    place.write("fine", "fine");
    let lease = Lease::take(&path);
    let read = json!({"path": place.uri("stuck")});
    let stuck: Vec<_> = (0..40).map(|_| client.send("fs/readFile", read.clone())).collect();
    let opening = client.send("fs/open", json!({"handleId": "h", "path": place.uri("stuck")}));
    let block = client.send("fs/readBlock", json!({"handleId": "h", "offset": 0, "len": 9}));
    for who in [&client, &server.client()] {
        for _ in 0..100 {
            who.call("fs/readFile", json!({"path": place.uri("fine")})).unwrap();
        }
        who.call("fs/writeFile", json!({"path": place.uri("new"), "dataBase64": ""})).unwrap();
        who.shell("p", "echo hi");
        assert_eq!(who.collect("p").text(), "hi\n");
        who.call("process/list", json!({})).unwrap();
    }
    client.notify("request/cancel", json!({"id": stuck[0]}));
    assert_eq!(client.outcome(&stuck[0]).unwrap_err()["data"]["kind"], "cancelled");
    assert!(client.look(|seen| !seen.has_reply(&stuck[1])), "the others still hang");
    drop(lease);
    for id in &stuck[1..] {
        assert_eq!(decode(&client.outcome(id).unwrap()["dataBase64"]), b"at last");
    }
    client.outcome(&opening).unwrap();
    assert_eq!(decode(&client.outcome(&block).unwrap()["chunk"]), b"at last");
}

#[test]
fn a_server_with_a_hanging_path_can_be_stopped() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    let path = place.write("stuck", "");
    let _lease = Lease::take(&path);
    client.send("fs/readFile", json!({"path": place.uri("stuck")}));
    client.send("fs/writeFile", json!({"path": place.uri("stuck"), "dataBase64": ""}));
    client.call("environment/status", json!({})).unwrap();
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn a_failed_block_keeps_the_old_file_even_if_close_was_pipelined() {
    let place = Place::new();
    place.write("file", "old");
    // A limit on the size of files stands in for a full disk: 8 blocks of 512 bytes.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "ulimit -f 8; exec \"$0\" serve", env!("CARGO_BIN_EXE_remex")]).stdin(Stdio::null());
    let server = Server::launch(command, 1);
    let client = server.client();
    for _ in 0..20 {
        let open = json!({"handleId": "h", "path": place.uri("file"), "mode": "replace", "atomic": true});
        let asked = [
            client.send("fs/open", open),
            client
                .send("fs/writeBlock", json!({"handleId": "h", "offset": 0, "chunk": encode([b'x'; 9000])})),
            client.send("fs/close", json!({"handleId": "h"})),
        ];
        let answers = asked.map(|id| client.outcome(&id));
        assert_eq!(answers[1].as_ref().unwrap_err()["data"]["kind"], "noSpace");
        // The handle is closed by the failure; whether before the close arrived is a matter of luck.
        if let Err(error) = &answers[2] {
            assert!(error["message"].as_str().unwrap().contains("was not replaced"), "{error}");
        }
        assert_eq!((place.read("file"), place.names("")), ("old".to_owned(), vec!["file".to_owned()]));
    }
}

#[test]
fn a_client_that_does_not_read_blocks_no_writer_and_costs_little() {
    let (server, place) = (Server::start(), Place::new());
    place.write("d/large", vec![b'x'; 5 * MIB]);
    place.write("d/medium", vec![b'x'; MIB]);
    for number in 0..5000 {
        place.write(&format!("d/{number:0200}"), "");
    }
    let (reader, writer) = (server.client(), server.client());
    let before = server.resident_bytes();
    reader.stop_reading();
    for _ in 0..100 {
        reader.send("fs/readFile", json!({"path": place.uri("d/large")}));
        reader.send("fs/readFile", json!({"path": place.uri("d/medium")}));
        reader.send("fs/readFile", json!({"path": "file:///proc/kallsyms"}));
        reader.send("fs/readDirectory", json!({"path": place.uri("d")}));
    }
    for _ in 0..100 {
        let write = json!({"path": place.uri("d/medium"), "dataBase64": encode("new")});
        writer.call("fs/writeFile", write).unwrap();
    }
    writer.call("fs/remove", json!({"path": place.uri("d")})).unwrap();
    let growth = server.resident_bytes().saturating_sub(before);
    assert!(growth < 128 << 20, "grew by {growth} bytes");
}

#[test]
fn abandoned_file_work_is_cancelled() {
    let (server, place) = (Server::start(), Place::new());
    // Hashing it would take an hour.
    for name in ["cancelled", "cut"] {
        File::create(place.path(name)).unwrap().set_len(1 << 42).unwrap();
    }
    let client = server.connect();
    client.initialize_with(json!({"clientName": "x", "resumeSessionId": null, "capabilities": ["cancel"]}));
    let hash = client.send("fs/hash", json!({"path": place.uri("cancelled")}));
    client.send("fs/hash", json!({"path": place.uri("cut")}));
    client.notify("request/cancel", json!({"id": hash}));
    assert_eq!(client.outcome(&hash).unwrap_err()["data"]["kind"], "cancelled");
    let other = server.client();
    other.call("fs/remove", json!({"path": place.uri("cancelled")})).unwrap();
    client.cut();
    other.call("fs/remove", json!({"path": place.uri("cut")})).unwrap();
}
