//! Edits and patches: near matches, and nothing half done.

use std::{fs, os::unix::fs::PermissionsExt as _};

use super::*;

#[tokio::test]
async fn an_edit_that_does_not_match_shows_similar_text() {
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
async fn a_patch_is_applied_completely_or_not_at_all() {
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

#[tokio::test]
async fn a_patch_changes_what_it_says_and_nothing_else() {
    let world = World::new();
    let model = world.model().await;
    let place = |name: &str| world.directory.path().join(name);
    let mode = |name: &str| fs::metadata(place(name)).unwrap().permissions().mode() & 0o777;
    for (name, content) in
        [("script", "a\n"), ("tool", "a\n"), ("twice", "1\n2\n"), ("old", "x\ny\n"), ("plain", "p\n")]
    {
        fs::write(place(name), content).unwrap();
    }
    for name in ["script", "tool"] {
        fs::set_permissions(place(name), fs::Permissions::from_mode(0o750)).unwrap();
    }
    let patch = "*** Begin Patch\n*** Update File: script\n*** Move to: moved/script\n*** Update File: tool\n*** Move to: moved/tool\n\
                 @@\n-a\n+b\n*** Update File: twice\n@@\n-1\n+one\n*** Update File: twice\n@@\n one\n-2\n+two\n*** End Patch\n";
    model.does("apply_patch", json!({"patch": patch})).await;
    assert_eq!((world.file("moved/script"), world.file("moved/tool")), ("a\n".into(), "b\n".into()));
    assert_eq!((mode("moved/script"), mode("moved/tool")), (0o750, 0o750));
    assert_eq!(world.file("twice"), "one\ntwo\n");
    assert!(!place("script").exists() && !place("tool").exists());
    // A deletion that does not know the whole file is refused.
    let delete = |lines: &str| json!({"patch": format!("--- a/old\n+++ /dev/null\n{lines}")});
    for lines in ["@@ -1 +0,0 @@\n-x\n", "@@ -1,2 +0,0 @@\n-x\n-z\n"] {
        let why = model.fails("apply_patch", delete(lines)).await;
        assert!(why.contains("nothing was changed") && place("old").exists(), "{why}");
    }
    model.does("apply_patch", delete("@@ -1,2 +0,0 @@\n-x\n-y\n")).await;
    assert!(!place("old").exists());
    let git = "diff --git a/run b/run\nnew file mode 100755\nindex 0..1\n--- /dev/null\n+++ b/run\n@@ -0,0 +1 @@\n+x\n\
               diff --git a/empty b/empty\nnew file mode 100644\nindex 0..0\n\
               diff --git a/plain b/named\nsimilarity index 90%\nrename from plain\nrename to named\n\
               diff --git a/twice b/twice\nold mode 100644\nnew mode 100755\n";
    model.does("apply_patch", json!({"patch": git})).await;
    assert_eq!(
        (world.file("run"), world.file("empty"), world.file("named")),
        ("x\n".into(), String::new(), "p\n".into())
    );
    assert_eq!((mode("run") & 0o100, mode("empty") & 0o100, mode("twice") & 0o100), (0o100, 0, 0o100));
    let why = model.fails("apply_patch", json!({"patch": "*** Begin Patch\n*** Delete File: run\n"})).await;
    assert!(why.contains("cut off") && place("run").exists(), "{why}");
}
