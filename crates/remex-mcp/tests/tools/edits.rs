//! Edits and patches: near matches, and nothing half done.

use std::fs;

use super::*;

#[tokio::test]
async fn an_edit_that_does_not_fit_shows_what_is_near() {
    let world = World::new();
    let model = world.model().await;
    fs::write(world.directory.path().join("a.rs"), "fn one() {\n\tlet value = 1;\n}\nfn one() {}\n").unwrap();
    let edit = |old: &str, new: &str| json!({"path": "a.rs", "edits": [{"old": old, "new": new}]});
    for (arguments, said) in [
        (
            edit("fn one() {\n    let value = 1;", "x"),
            "differ only in white space (a tab follows each number):\n     1\tfn one() {",
        ),
        (edit("let valeu = 1;", "x"), "the most similar lines are:\n     2\t\tlet value = 1;"),
        (edit("fn one()", "x"), "2 times: at lines 1, 4"),
        (edit("let", "let"), "are the same, so it changes nothing"),
    ] {
        let why = model.fails("edit_file", arguments).await;
        assert!(why.contains(said), "{why}");
    }
}

#[tokio::test]
async fn a_patch_is_applied_as_a_whole_or_not_at_all() {
    let world = World::new();
    let model = world.model().await;
    let place = |name: &str| world.directory.path().join(name);
    fs::write(place("a"), "one\ntwo\nthree\n").unwrap();
    fs::write(place("gone"), "x\n").unwrap();
    let patch = "*** Begin Patch\n*** Update File: a\n@@\n one\n-two\n+2\n*** Add File: new/b\n+text\n*** Delete File: gone\n\
                 *** End Patch\n";
    let wrong = patch.replace(" one", " uno");
    let why = model.fails("apply_patch", json!({"patch": wrong})).await;
    assert!(why.contains("hunk 1 of") && why.contains("nothing was changed"), "{why}");
    assert!(place("gone").exists() && !place("new").exists());
    let (text, _) = model.does("apply_patch", json!({"patch": patch})).await;
    assert_eq!(text.lines().count(), 3, "{text}");
    assert_eq!((world.file("a"), world.file("new/b")), ("one\n2\nthree\n".to_owned(), "text\n".to_owned()));
    assert!(!place("gone").exists());
    let diff = "--- a/a\n+++ b/a\n@@ -2,2 +2,2 @@\n 2\n-three\n+3\n";
    model.does("apply_patch", json!({"patch": diff})).await;
    assert_eq!(world.file("a"), "one\n2\n3\n");
    let why = model.fails("apply_patch", json!({"patch": patch})).await;
    assert!(why.contains("nothing was changed"), "{why}");
}
