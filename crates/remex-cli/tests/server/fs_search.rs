//! Searching the files of a tree.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{fs, os::unix::fs::symlink};

use serde_json::{Value, json};

use crate::support::{Client, Place, Server};

/// Searches, and returns the answer.
fn search(client: &Client, uri: &str, options: &Value) -> Value {
    let answer = client.call("fs/search", json!({"path": uri, "options": options}));
    answer.unwrap_or_else(|error| panic!("the search is answered: {error}"))
}

/// Returns the matching lines of an answer as `path:number:text`.
fn lines(place: &Place, answer: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for file in answer["files"].as_array().expect("there is a list of files") {
        let path = file["path"].as_str().unwrap();
        let path = path.strip_prefix(&place.uri("")).unwrap_or(path);
        for line in file["lines"].as_array().unwrap_or(&Vec::new()) {
            let mark = if line["isMatch"] == json!(false) { '-' } else { ':' };
            found.push(format!("{path}{mark}{}{mark}{}", line["number"], line["text"].as_str().unwrap()));
        }
    }
    found
}

/// Returns the files of an answer.
fn files(place: &Place, answer: &Value) -> Vec<String> {
    let prefix = place.uri("");
    let files = answer["files"].as_array().expect("there is a list of files");
    files
        .iter()
        .map(|file| file["path"].as_str().unwrap().strip_prefix(&prefix).unwrap().to_owned())
        .collect()
}

fn tree(place: &Place) {
    for directory in ["src/deep", "docs", "target", ".git", ".github"] {
        fs::create_dir_all(place.path(directory)).unwrap();
    }
    for (name, content) in [
        (".gitignore", "/target/\n*.log\n!kept.log\n"),
        ("src/main.rs", "fn main() {\n    let number = 42;\n}\n"),
        ("src/deep/lib.rs", "// number one\r\npub fn lib() -> u8 {}\r\n"),
        ("src/deep/lib.c", "int number = 7;\n"),
        ("docs/number.md", "# The number\n"),
        ("target/built.rs", "number\n"),
        ("noise.log", "number\n"),
        ("kept.log", "number\n"),
        (".git/config", "number\n"),
        (".github/workflow", "number\n"),
    ] {
        place.write(name, content);
    }
    place.write("binary", b"number\0number\n");
}

#[test]
fn a_search_matches_lines_with_rust_regexes_and_reports_what_it_skipped() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    tree(&place);
    let answer = search(&client, &place.uri(""), &json!({"pattern": r"number\b.*\d|\d+;$"}));
    assert_eq!(
        lines(&place, &answer),
        ["src/deep/lib.c:1:int number = 7;", "src/main.rs:2:    let number = 42;"]
    );
    assert_eq!((&answer["ignored"], &answer["binary"]), (&json!(3), &json!(1)), "{answer}");
    assert_eq!(answer["binaryFiles"], json!([place.uri("binary")]));
    // Both kinds of line ends are recognized.
    let answer = search(&client, &place.uri("src"), &json!({"pattern": r"\{\}$"}));
    assert_eq!(lines(&place, &answer), ["src/deep/lib.rs:2:pub fn lib() -> u8 {}"]);
    let answer = search(&client, &place.uri(""), &json!({"pattern": "number", "report": "files"}));
    let expected = [
        ".github/workflow",
        "docs/number.md",
        "kept.log",
        "src/deep/lib.c",
        "src/deep/lib.rs",
        "src/main.rs",
    ];
    assert_eq!(files(&place, &answer), expected);
    let all = json!({"pattern": "number", "report": "files", "withIgnored": true});
    assert_eq!(files(&place, &search(&client, &place.uri(""), &all)).len(), 9);
    let literal = json!({"pattern": "-> U8 {}", "literal": true, "ignoreCase": true, "report": "counts"});
    let answer = search(&client, &place.uri(""), &literal);
    assert_eq!(answer["files"], json!([{"path": place.uri("src/deep/lib.rs"), "count": 1}]));
    // A file is searched whatever the rules say.
    let answer = search(&client, &place.uri("noise.log"), &json!({"pattern": "number"}));
    assert_eq!(lines(&place, &answer), ["noise.log:1:number"]);
    // The rules of the repository hold below its root.
    fs::create_dir_all(place.path("src/logs")).unwrap();
    place.write("src/logs/new.log", "number\n");
    let answer = search(&client, &place.uri("src/logs"), &json!({"pattern": "number"}));
    assert_eq!((&answer["files"], &answer["ignored"]), (&json!([]), &json!(1)));
}

#[test]
fn globs_are_those_of_ripgrep() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    tree(&place);
    for (globs, expected) in [
        (json!(["*.rs"]), vec!["src/deep/lib.rs", "src/main.rs"]),
        (json!(["src/**/*.{rs,c}"]), vec!["src/deep/lib.c", "src/deep/lib.rs", "src/main.rs"]),
        (json!(["**/deep/**"]), vec!["src/deep/lib.c", "src/deep/lib.rs"]),
        (json!(["docs/"]), vec!["docs/number.md"]),
        (json!(["deep"]), vec!["src/deep/lib.c", "src/deep/lib.rs"]),
        (json!(["/*.log"]), vec!["kept.log", "noise.log"]),
        (json!(["*.rs", "!deep/"]), vec!["src/main.rs"]),
        (json!(["!*.rs", "!.*"]), vec!["binary", "docs/number.md", "kept.log", "src/deep/lib.c"]),
    ] {
        let answer = search(&client, &place.uri(""), &json!({"globs": globs}));
        assert_eq!(files(&place, &answer), expected, "{globs}");
    }
    let answer = search(&client, &place.uri("src"), &json!({"maxDepth": 0}));
    assert_eq!(files(&place, &answer), ["src/main.rs"]);
    for (options, why) in [
        (json!({"globs": ["{a"]}), "`{a` is not a glob"),
        (json!({"pattern": "("}), "`(` is not a regular expression"),
        (json!({"pattern": "a\n"}), "contains a line feed"),
        (json!({"pattern": "x".repeat(100_000)}), "the pattern has 100000 bytes"),
        (json!({"pattern": "((\\w{500}){500}){500}"}), "is not a regular expression"),
        (json!({"pattern": "(".repeat(5000) + &")".repeat(5000)}), "is not a regular expression"),
        (json!({"globs": ["{".repeat(5000) + "a" + &"}".repeat(5000)]}), "is a glob of 10001 bytes"),
        (
            json!({"globs": ["{".repeat(1000) + "a" + &"}".repeat(1000)]}),
            "is a glob with 1000 opening braces",
        ),
        // What closes no brace does not hide that braces are nested.
        (json!({"globs": ["{[}]".repeat(1000) + &"}".repeat(40)]}), "is a glob with 1000 opening braces"),
        (json!({"globs": ["[".repeat(4000)]}), "is not a glob"),
        (json!({"globs": vec!["a".repeat(4000); 20]}), "the globs have 80000 bytes together"),
        (json!({"maxItems": 0}), "`maxItems` is 0"),
        (json!({"contextBefore": 101}), "`contextBefore` is 101"),
    ] {
        let refused = client.call("fs/search", json!({"path": place.uri(""), "options": options}));
        let error = refused.expect_err("the options are wrong");
        assert!(error["message"].as_str().unwrap().contains(why), "{error}");
        assert_eq!(error["data"]["kind"], "invalidInput", "{error}");
        assert!(error.to_string().len() < 1000, "the error repeats all of it: {error}");
    }
    // As deep as it may be.
    let globs = json!(["{".repeat(32) + "*.rs" + &"}".repeat(32)]);
    let answer = search(&client, &place.uri(""), &json!({"globs": globs}));
    assert_eq!(files(&place, &answer), ["src/deep/lib.rs", "src/main.rs"]);
}

/// Returns what an answer says about the ignore file of the place.
fn complaint(place: &Place, answer: &Value) -> String {
    let errors = answer["errors"].as_array().unwrap_or_else(|| panic!("there are errors: {answer}"));
    assert_eq!((errors.len(), &errors[0]["path"]), (1, &json!(place.uri(".gitignore"))), "{answer}");
    errors[0]["message"].as_str().unwrap().to_owned()
}

#[test]
fn ignore_files_are_used_within_limits_and_skipped_ones_are_reported() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    for name in ["first", "last", "seen", ".git/config", "below/first"] {
        place.write(name, "number\n");
    }
    let ignored = |content: String| {
        place.write(".gitignore", content);
        let answer = search(&client, &place.uri(""), &json!({"pattern": "number", "report": "files"}));
        (files(&place, &answer), complaint(&place, &answer))
    };
    let deep = |count| "{".repeat(count) + "seen" + &"}".repeat(count);
    let (found, why) = ignored(format!("first\n{}\n{}\nlast\n", deep(5000), deep(1000)));
    assert_eq!(found, ["seen"]);
    assert!(why.contains("line 2 is left out, since it is a glob of 10004 bytes"), "{why}");
    assert!(why.contains("and so are 1 others"), "{why}");
    // The same holds for a file above the directory that is searched.
    let answer = search(&client, &place.uri("below"), &json!({"pattern": "number"}));
    assert!(complaint(&place, &answer).contains("line 2 is left out"), "{answer}");
    assert_eq!(answer["files"], json!([]));
    let (found, why) = ignored(format!("first\n{}last\n", "no-[a-z]*-such-*\n".repeat(100_000)));
    assert_eq!(found, ["last", "seen"]);
    assert!(why.contains("limit is 65536 bytes") && why.contains("limit is 2000 rules"), "{why}");
    // Of rules that are compiled separately, the last decides as well.
    place.write(".gitignore", format!("first\nlast\n{}!first\n", "*.none\n".repeat(500)));
    let answer = search(&client, &place.uri(""), &json!({"pattern": "number", "report": "files"}));
    assert_eq!(files(&place, &answer), ["below/first", "first", "seen"]);
    assert_eq!(answer["errors"], Value::Null);
}

#[test]
fn long_lines_are_searched_completely_and_truncated_around_the_match() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("long", format!("{}needle{}\n", "ä".repeat(500_000), "b".repeat(1_000_000)));
    let answer = search(&client, &place.uri(""), &json!({"pattern": "needle", "maxLineBytes": 100}));
    let line = &answer["files"][0]["lines"][0];
    let text = line["text"].as_str().unwrap();
    assert!(text.contains("needle") && text.len() <= 100 && !text.contains('\u{fffd}'), "{line}");
    let left_out = line["omittedBefore"].as_u64().unwrap() + line["omittedAfter"].as_u64().unwrap();
    assert_eq!(left_out + text.len() as u64, 2_000_006);
    // What does not fit into memory is named, and not passed over.
    place.write("endless", vec![b'x'; 20 << 20]);
    let answer = search(&client, &place.uri(""), &json!({"pattern": "needle"}));
    assert_eq!(answer["errors"][0]["path"], place.uri("endless"), "{answer}");
    assert!(answer["errors"][0]["message"].as_str().unwrap().contains("a line is longer"), "{answer}");
    assert_eq!(answer["files"].as_array().unwrap().len(), 1);
}

#[test]
fn each_limit_ends_a_search_with_partial_results_and_it_can_be_continued() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    for name in ["a", "b", "c"] {
        place.write(name, "x1\nx2\ny\nx3\n");
    }
    let (mut all, mut skip) = (Vec::new(), 0);
    loop {
        let options = json!({"pattern": "x", "maxItems": 4, "skip": skip});
        let answer = search(&client, &place.uri(""), &options);
        let found = lines(&place, &answer);
        skip += found.len();
        all.extend(found);
        if answer["truncated"].is_null() {
            break;
        }
        assert_eq!(answer["truncated"], "items");
    }
    let expected = ["a:1:x1", "a:2:x2", "a:4:x3", "b:1:x1", "b:2:x2", "b:4:x3", "c:1:x1", "c:2:x2", "c:4:x3"];
    assert_eq!(all, expected);
    let around = json!({"pattern": "y", "contextBefore": 1, "contextAfter": 5, "globs": ["a"]});
    let answer = search(&client, &place.uri(""), &around);
    assert_eq!(lines(&place, &answer), ["a-2-x2", "a:3:y", "a-4-x3"]);
    let answer = search(&client, &place.uri(""), &json!({"pattern": "x", "maxBytes": 300}));
    assert_eq!(answer["truncated"], "bytes");
    assert!(!answer["files"].as_array().unwrap().is_empty());
    let answer = search(&client, &place.uri(""), &json!({"pattern": "x", "timeoutMs": 0}));
    assert_eq!((&answer["truncated"], &answer["files"]), (&json!("time"), &json!([])));
    let answer = search(&client, &place.uri("a"), &json!({"pattern": "x", "timeoutMs": 0}));
    assert_eq!((&answer["truncated"], &answer["files"]), (&json!("time"), &json!([])));
}

#[test]
fn only_regular_files_are_opened_and_no_link_is_followed() {
    let (server, place, outside) = (Server::start(), Place::new(), Place::new());
    let client = server.client();
    outside.write("secret", "needle\n");
    place.fifo("fifo");
    symlink(place.path(""), place.path("loop")).unwrap();
    symlink(outside.path(""), place.path("away")).unwrap();
    symlink(outside.path("secret"), place.path("link")).unwrap();
    place.write("file", "needle\n");
    let answer = search(&client, &place.uri(""), &json!({"pattern": "needle"}));
    assert_eq!(lines(&place, &answer), ["file:1:needle"]);
    let error = client.call("fs/search", json!({"path": place.uri("fifo"), "options": {}})).unwrap_err();
    assert_eq!(error["data"]["kind"], "notAFile");
    let error = client.call("fs/search", json!({"path": place.uri("missing")})).unwrap_err();
    assert_eq!(error["code"], -32004);
    // A search that begins at a link begins at what that leads to.
    let answer = search(&client, &place.uri("away"), &json!({"pattern": "needle"}));
    assert_eq!(files(&place, &answer), ["away/secret"]);
}

#[test]
fn a_cancelled_search_is_answered_at_once() {
    let (server, place) = (Server::start(), Place::new());
    let file = place.write("d/0", "x\n".repeat(1 << 20));
    // As good as endless, and takes no room.
    for number in 1..10_000 {
        fs::hard_link(&file, place.path(&format!("d/{number}"))).unwrap();
    }
    let client = server.connect();
    client.initialize_with(json!({"clientName": "x", "resumeSessionId": null, "capabilities": ["cancel"]}));
    let options = json!({"pattern": "(?i)y[xz]+", "timeoutMs": 120_000});
    let search = client.send("fs/search", json!({"path": place.uri("d"), "options": options}));
    client.notify("request/cancel", json!({"id": search}));
    assert_eq!(client.outcome(&search).unwrap_err()["data"]["kind"], "cancelled");
}
