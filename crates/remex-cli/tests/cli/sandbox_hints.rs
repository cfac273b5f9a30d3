//! What `remex run` says when its sandbox hides or refuses something: the flag that allows it.

use std::fs;

use crate::{
    home::{Home, said},
    support::InTime as _,
};

#[test]
fn a_directory_that_a_minimal_sandbox_hides_is_told_with_the_flag_that_shows_it() {
    let home = Home::new();
    let hidden = home.say(&["run", "--sandbox", "minimal", "--", "pwd"]);
    assert_eq!(hidden.code, Some(125), "{hidden:?}");
    assert!(hidden.err.contains("hint: add `--read .` to let the command read this directory"), "{hidden:?}");
    let shown = home.say(&["run", "--sandbox", "minimal", "--read", ".", "--", "pwd"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    fs::create_dir(home.path("below")).unwrap();
    let below = home.say(&["run", "--sandbox", "minimal", "--cwd", "below", "--", "pwd"]);
    assert!(below.err.contains("hint: add `--read below`"), "{below:?}");
}

#[test]
fn a_write_that_a_sandbox_refused_is_told_with_the_flag_that_allows_it() {
    let home = Home::new();
    fs::create_dir_all(home.path("repo/.git")).unwrap();
    let run = |args: &[&str]| {
        let mut command = home.remex(&[&["run", "--sandbox", "workspace-write"], args].concat());
        said(&command.current_dir(home.path("repo")).finished())
    };
    let refused = run(&["--", "touch", ".git/index.lock"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("Read-only file system"), "{refused:?}");
    assert!(refused.err.contains("remex: the sandbox may be the reason: `workspace-write`"), "{refused:?}");
    assert!(refused.err.contains("`--write .git`"), "{refused:?}");
    let allowed = run(&["--write", ".git", "--", "touch", ".git/index.lock"]);
    assert_eq!((allowed.code, allowed.err.as_str()), (Some(0), ""), "{allowed:?}");
    // What fails for another reason is not blamed on it.
    let other = run(&["--", "sh", "-c", "echo no >&2; exit 3"]);
    assert_eq!((other.code, other.err.as_str()), (Some(3), "no\n"), "{other:?}");
}
