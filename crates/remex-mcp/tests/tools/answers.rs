//! What a model reads: hints that it can follow, hashes, images, and no more than clients accept.

use std::fs;

use super::*;

/// Words of the protocol, and advice that would do harm.
const FOREIGN: [&str; 9] = [
    "initialize",
    "takeover",
    "fs/",
    "process/",
    "pipeStdin",
    "followSymlinks",
    "remove `",
    "`recursive",
    "--state",
];

#[tokio::test]
async fn hints_refer_to_tools_and_are_safe_to_follow() {
    let world = World::new();
    let model = world.model().await;
    fs::write(world.directory.path().join("file"), "text\n").unwrap();
    fs::create_dir(world.directory.path().join("directory")).unwrap();
    model.does("run_command", json!({"command": "sleep 1000", "name": "deaf", "wait_seconds": 0})).await;
    for (tool, arguments, what) in [
        ("write_file", json!({"path": "file/x", "content": ""}), "file"),
        ("write_file", json!({"path": "directory", "content": ""}), "directory"),
        ("read_file", json!({"path": "missing"}), "list_directory"),
        ("read_file", json!({"path": "directory"}), "list_directory"),
        ("list_directory", json!({"path": "missing"}), "list_directory"),
        ("edit_file", json!({"path": "missing", "edits": []}), "missing"),
        ("copy", json!({"from_path": "missing", "to_path": "x"}), "missing"),
        ("run_command", json!({"command": "true", "cwd": "missing"}), "`cwd`"),
        ("send_input", json!({"process": "deaf", "text": "x"}), "`input` `pipe` or `terminal`"),
    ] {
        let why = model.fails(tool, arguments.clone()).await;
        assert!(why.contains(what), "{tool} {arguments}: {why}");
        for word in FOREIGN {
            assert!(!why.contains(word), "{tool} {arguments}: {why}");
        }
    }
    model.does("stop_process", json!({"process": "deaf", "grace_seconds": 0})).await;
}

#[tokio::test]
async fn the_text_of_a_read_suffices_for_an_edit() {
    let world = World::new();
    let model = world.model().await;
    let hash_in = |text: &str| text.rsplit_once(": ").unwrap().1.trim_end_matches(']').to_owned();
    let (text, _) = model.does("write_file", json!({"path": "file", "content": "one\r\ntwo\r\n"})).await;
    let written = hash_in(&text);
    let (text, _) = model.does("read_file", json!({"path": "file"})).await;
    assert!(text.starts_with("     1\tone\r\n     2\ttwo\r\n[lines end with CRLF]\n[10 bytes;"), "{text:?}");
    assert_eq!(hash_in(&text), written);
    let plain = model.does("read_file", json!({"path": "file", "numbers": false})).await.0;
    assert!(plain.starts_with("one\r\ntwo\r\n["), "{plain:?}");
    let edit = json!({"path": "file", "edits": [{"old": "one\ntwo", "new": "1\n2"}], "if_match": written});
    let (text, _) = model.does("edit_file", edit).await;
    assert!(text.contains("end with CRLF"), "{text}");
    assert_eq!(world.file("file"), "1\r\n2\r\n");
}

#[tokio::test]
async fn images_are_returned_as_images_and_other_binary_content_is_reported() {
    let world = World::new();
    let model = world.model().await;
    let png = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(), &[0; 80], b"\0\0\0\0IEND\xaeB`\x82"].concat();
    fs::write(world.directory.path().join("cut"), &png[..100]).unwrap();
    let result = model.call("read_file", json!({"path": "cut"})).await;
    assert!(result.content.len() == 1 && text(&result).starts_with("binary, 100 bytes"), "{result:?}");
    fs::write(world.directory.path().join("words"), "GIF8 is how they begin;\n").unwrap();
    let (words, _) = model.does("read_file", json!({"path": "words"})).await;
    assert!(words.starts_with("     1\tGIF8 is how"), "{words}");
    fs::write(world.directory.path().join("picture"), &png).unwrap();
    let result = model.call("read_file", json!({"path": "picture"})).await;
    let image = result.content[1].as_image().expect("it is an image");
    assert_eq!((image.mime_type.as_str(), image.data.len()), ("image/png", 144));
    assert!(text(&result).starts_with("an image, binary, 108 bytes"), "{}", text(&result));
    let (text, _) = model.does("run_command", json!({"command": "head -c 10000 /dev/urandom"})).await;
    assert!(text.starts_with("binary, 10000 bytes\n["), "{text}");
    let (text, _) = model.does("run_command", json!({"command": "printf 'caf\\351 au lait\\n'"})).await;
    assert!(text.starts_with("caf\u{fffd} au lait\n"), "{text}");
}

#[tokio::test]
async fn a_listing_has_a_budget_and_shows_shallow_entries_first() {
    let world = World::new();
    let model = world.model().await;
    for number in 0..50 {
        let directory = world.directory.path().join("a/deep/er");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(number.to_string()), "").unwrap();
    }
    fs::write(world.directory.path().join("z"), "").unwrap();
    let (text, data) = model.does("list_directory", json!({"depth": 9, "limit": 5})).await;
    assert!(text.starts_with("a/\na/deep/\na/deep/er/\n") && text.contains("\nz\n[more"), "{text}");
    assert_eq!(data["entries"].as_array().unwrap().len(), 5);
    let (text, _) = model.does("list_directory", json!({"path": "a/deep/er", "limit": 3})).await;
    assert!(text.starts_with("0\n1\n10\n[more entries follow: raise `limit` (3)"), "{text}");
    let many = world.directory.path().join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..5001 {
        fs::write(many.join(format!("{number}\nline")), "").unwrap();
    }
    let (text, _) = model.does("list_directory", json!({"path": "many", "limit": 9999})).await;
    assert!(
        text.starts_with("0\\nline\n") && !text.contains("raise `limit`"),
        "{}",
        &text[text.len() - 200..]
    );
}

#[tokio::test]
async fn a_page_of_a_huge_file_has_no_hash() {
    let world = World::new();
    let model = world.model().await;
    fs::write(world.directory.path().join("huge"), "line\n".repeat(4 << 20)).unwrap();
    let (text, data) = model.does("read_file", json!({"path": "huge", "lines": 1})).await;
    assert!(text.ends_with("over 16 MiB there is no hash for `if_match`]"), "{text}");
    assert!(data.get("hash").is_none(), "{data}");
}

#[tokio::test]
async fn a_result_fits_the_limits_of_clients_and_long_text_is_not_repeated() {
    let world = World::new();
    let model = world.model().await;
    let command = json!({"command": "yes '\"\\' | head -c 2000000", "max_output_tokens": 100_000});
    let result = model.call("run_command", command).await;
    let json = serde_json::to_string(&result).unwrap();
    assert!((500_000..1 << 20).contains(&json.len()), "{}", json.len());
    assert!(result.structured_content.is_none());
    let short = model.call("run_command", json!({"command": "echo short"})).await;
    assert_eq!(short.structured_content.unwrap()["output"], "short\n");
}

#[tokio::test]
async fn the_list_of_tools_is_short() {
    let world = World::new();
    let model = world.model().await;
    let tools = model.service.list_all_tools().await.unwrap();
    let bytes = serde_json::to_string(&tools).unwrap().len();
    // Four bytes are about a token.
    assert!(bytes / 4 <= 2500, "{} tokens", bytes / 4);
}

#[tokio::test]
async fn arguments_may_be_null_and_a_wrong_one_is_named() {
    let world = World::new();
    let model = world.model().await;
    let strict = json!({"command": "echo $A", "environment": null, "cwd": null, "env": ["A=b=c"], "name": null,
        "input": null, "stdin": null, "wait_seconds": null, "timeout_seconds": null, "max_output_tokens": null});
    assert!(model.does("run_command", strict.clone()).await.0.starts_with("b=c\n"));
    let tools = model.service.list_all_tools().await.unwrap();
    let schema = &tools.iter().find(|tool| tool.name == "run_command").unwrap().input_schema;
    let described: Vec<_> = schema["properties"].as_object().unwrap().keys().collect();
    let given: Vec<_> = strict.as_object().unwrap().keys().collect();
    assert_eq!(described, given, "a strict client sends every argument");
    assert_eq!(schema["additionalProperties"], false);
    for (arguments, name) in [
        (json!({"command": "true", "wait_seconds": "soon"}), "`wait_seconds`"),
        (json!({"command": ["true"]}), "`command`"),
        (json!({"command": "true", "env": 7}), "`env`"),
        (json!({"command": "true", "env": ["A"]}), "`A` in `env`"),
        (json!({"command": "true", "input": "tty"}), "`input`"),
        (json!({}), "`command`"),
    ] {
        let why = model.fails("run_command", arguments).await;
        assert!(why.contains(name), "{why}");
    }
}

#[tokio::test]
async fn deleting_an_http_session_is_answered_as_clients_expect() {
    let world = World::new();
    let (address, _) = over_http(&world).await;
    let bearer = "authorization: Bearer s3cret\r\n";
    let answer = post(address, bearer, "/mcp").await;
    let session = answer.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
    let head = format!(
        "DELETE /mcp HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nmcp-session-id: {session}\r\n\
         mcp-protocol-version: 2025-06-18\r\n{bearer}\r\n"
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    timeout(OVERDUE, stream.read_exact(&mut status)).await.expect("an answer").unwrap();
    assert_eq!(&status, b"HTTP/1.1 204");
}
