//! Search: what matches is found, and what was not searched is said.

use std::fs;

use super::*;

fn tree() -> World {
    let world = World::new();
    for (path, content) in [
        ("a/b/c.rs", "fn main() {}\nlet n = 42;\n"),
        ("a/d.txt", "Main\n"),
        ("e", "nothing\n"),
        ("built/out.rs", "fn built() {}\n"),
        (".gitignore", "built/\n"),
    ] {
        let path = world.directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    world
}

#[tokio::test]
async fn lines_are_found_with_the_expressions_and_globs_of_ripgrep() {
    let world = tree();
    let model = world.model().await;
    for (arguments, expected) in [
        (json!({"pattern": "ma?in\\("}), "a/b/c.rs:1:fn main() {}"),
        (json!({"pattern": "\\d\\d"}), "a/b/c.rs:2:let n = 42;"),
        (json!({"pattern": "MAIN", "ignore_case": true, "include": "*.txt"}), "a/d.txt:1:Main"),
        (json!({"pattern": "fn", "glob": "a/**/*.{rs,txt}"}), "a/b/c.rs:1:fn main() {}"),
        (json!({"pattern": "fn", "glob": ["b/"]}), "a/b/c.rs:1:fn main() {}"),
        (json!({"pattern": "main", "context": 1}), "a/b/c.rs:1:fn main() {}\na/b/c.rs-2-let n = 42;"),
        (json!({"pattern": ".", "report": "counts", "glob": "a/"}), "a/b/c.rs: 2\na/d.txt: 1"),
        (json!({"pattern": "built", "ignored": true, "report": "files"}), ".gitignore\nbuilt/out.rs"),
        (json!({"glob": "*.rs"}), "a/b/c.rs"),
        (json!({"pattern": "n =", "path": "a/b/c.rs", "literal": true}), "PATH/a/b/c.rs:2:let n = 42;"),
        (
            json!({"pattern": "-e nowhere"}),
            "nothing matches in the 4 files that were searched\n[1 files and directories that \
            `.gitignore` excludes were left out; search them with `ignored`]",
        ),
        (
            json!({"glob": "*.c"}),
            "no file has such a name\n[1 files and directories that `.gitignore` excludes were left out; \
            search them with `ignored`]",
        ),
    ] {
        let (text, _) = model.does("search_files", arguments.clone()).await;
        let expected = expected.replace("PATH", world.directory.path().to_str().unwrap());
        assert_eq!(text, expected, "{arguments}");
    }
    for (arguments, why) in [
        (json!({"pattern": "x", "path": "missing"}), "No such file"),
        (json!({"pattern": "x\n"}), "contains a line feed"),
        (json!({"pattern": "("}), "is not a regular expression"),
        (json!({}), "there is nothing to search for"),
    ] {
        let said = model.fails("search_files", arguments).await;
        assert!(said.contains(why), "{said}");
    }
    let glob = format!("[{}", "a".repeat(5000));
    let said = model.fails("search_files", json!({"pattern": "x", "glob": glob})).await;
    assert!(said.contains(&glob[..100]) && said.len() < 500, "{said}");
}

#[tokio::test]
async fn truncated_binary_and_omitted_matches_are_reported() {
    let world = World::new();
    let model = world.model().await;
    let place = |name: &str| world.directory.path().join(name);
    fs::write(place("long"), format!("{}needle{}\n", "a".repeat(100_000), "b".repeat(100_000))).unwrap();
    let (text, _) = model.does("search_files", json!({"pattern": "needle"})).await;
    assert!(text.starts_with("long:1:[99900 bytes]a") && text.ends_with("b[99706 bytes]"), "{text}");
    fs::write(place("binary"), "needle\0").unwrap();
    let (text, _) = model.does("search_files", json!({"pattern": "needle", "report": "files"})).await;
    assert_eq!(text, "long\n[1 binary files were not searched, such as binary]");
    fs::write(place("many"), "match this line\n".repeat(100_000)).unwrap();
    let (mut skip, mut last) = (0, 0);
    for _ in 0..3 {
        let arguments = json!({"pattern": "match", "path": "many", "skip": skip, "limit": 50});
        let (text, _) = model.does("search_files", arguments).await;
        let (lines, note) = text.rsplit_once('\n').unwrap();
        let first: usize = lines.split(':').nth(1).unwrap().parse().unwrap();
        assert_eq!(first, last + 1, "{text}");
        last = lines.lines().last().unwrap().split(':').nth(1).unwrap().parse().unwrap();
        skip += 50;
        assert!(note.starts_with(&format!("[more follows; continue with `skip` {skip},")), "{note}");
    }
}
