//! Requests of one identity that hang, and what they leave to others.

use std::fs;

use serde_json::json;

use crate::support::{Guarded, HungFs, Interrupts, Place, Web, web_answer};

const HOG: &str = "rV7xq0Dk2mYw9ZsT4uJc1A";
const OTHER: &str = "0f2a61c9d84be35770ac19e2f4d6b8a3";

/// With as many connections, more requests of the identity hang than there are threads.
const CONNECTIONS: usize = 36;

/// The file requests of one connection that run at once.
const REQUESTS: usize = 64;

#[test]
fn thousands_of_hanging_requests_of_one_identity_block_neither_others_nor_revocation() {
    let Some(hung) = HungFs::mount(Interrupts::Obeyed) else { return };
    let place = Place::new();
    place.write("file", "x");
    let guarded = Guarded::with_tokens(&format!("{HOG} name=hog\n{OTHER} name=other\n"));
    let hogs: Vec<_> = (0..CONNECTIONS).map(|_| guarded.client(HOG)).collect();
    for (number, hog) in hogs.iter().enumerate() {
        for request in 0..REQUESTS {
            let path = hung.path(&format!("{number}-{request}"));
            hog.send("fs/getMetadata", json!({"path": path}));
        }
    }
    for hog in &hogs {
        // Answered after all that was sent before has begun.
        hog.call("process/list", json!({})).expect("a list needs no file");
    }
    hung.wait_until_hanging(1);
    let threads = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", guarded.server.pid())).expect("the server runs");
        let names =
            tasks.flatten().map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
        names.filter(|name| name == "remex-file\n").count()
    };
    let occupied = threads();
    assert!(occupied >= 1000, "only {occupied} requests hang");

    let other = guarded.client(OTHER);
    let found = other.call("fs/readFile", json!({"path": place.uri("file")})).expect("it is read");
    assert_eq!(found["dataBase64"], "eA==");
    // Long enough to be built on a thread.
    let web = Web::answering(web_answer(200, &[], vec![b'x'; 1 << 20]));
    let answer = other
        .call("http/request", json!({"requestId": "r", "method": "GET", "url": web.url("/"), "headers": []}));
    assert_eq!(answer.expect("it is answered")["status"], 200);
    guarded.rewrite(&format!("{HOG} name=hog\n"));
    assert_eq!(other.closed_for("its token was removed").0, 1008);
    assert_eq!([HOG, OTHER].map(|token| guarded.status(token)), [101, 401]);
}
