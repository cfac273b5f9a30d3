//! Files that have no end, or nothing to say, or are no files at all.

use std::os::unix::net::UnixListener;

use serde_json::json;

use crate::support::{Place, Server, decode};

#[test]
fn every_read_of_a_special_file_is_answered() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.fifo("fifo");
    let _socket = UnixListener::bind(place.path("socket")).expect("a socket can be bound");
    let own = format!("file:///proc/{}", std::process::id());
    let others = ["kmsg", "sys/kernel/random/uuid", "self/mem", "self/environ", "self/pagemap", "uptime"];
    let paths: Vec<String> = others
        .iter()
        .map(|name| format!("file:///proc/{name}"))
        .chain(["mem", "fd/0", "clear_refs", "wchan"].map(|name| format!("{own}/{name}")))
        .chain(["tty", "zero", "random", "null", "ptmx", "kmsg"].map(|name| format!("file:///dev/{name}")))
        .chain(["file:///sys/kernel/tracing/trace_pipe".to_owned()])
        .chain([place.uri("fifo"), place.uri("socket")])
        .collect();
    for (number, path) in paths.iter().enumerate() {
        // Twice, because the first may have taken all that was there.
        for _ in 0..2 {
            let _ = client.call("fs/readFile", json!({"path": path}));
        }
        let _ = client.call("fs/hash", json!({"path": path, "len": 1 << 20}));
        let handle = format!("h{number}");
        let _ = client.call("fs/open", json!({"handleId": handle, "path": path}));
        let _ = client.call("fs/readBlock", json!({"handleId": handle, "offset": 0, "len": 1 << 16}));
        let _ = client.call("fs/close", json!({"handleId": handle}));
        if !path.ends_with("pagemap") {
            let destination = place.uri(&format!("copy-{number}"));
            let copy = json!({"sourcePath": path, "destinationPath": destination, "recursive": false});
            let _ = client.call("fs/copy", copy);
        }
    }
    let uptime = client.call("fs/readFile", json!({"path": "file:///proc/uptime"})).expect("it has an end");
    assert!(!decode(&uptime["dataBase64"]).is_empty(), "what claims no size may still say something");
    place.write("empty", "");
    let empty = client.call("fs/readFile", json!({"path": place.uri("empty")}));
    assert_eq!(empty, Ok(json!({"dataBase64": ""})), "an empty file is no error");
}
