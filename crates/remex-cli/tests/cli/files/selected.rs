//! What paths mean where an environment is selected for all commands.

use std::{fs, process::Stdio};

use super::{World, said};
use crate::home::{self, Said};

const ON_THIS_MACHINE: &str = "remex: `f` is on this machine; write `:f` for build, which REMEX_ON selects\n";

fn say(world: &World, args: &[&str]) -> Said {
    home::said(&world.here.remex(args).env("REMEX_ON", "build").stdin(Stdio::null()).output().unwrap())
}

fn world() -> World {
    let world = World::new();
    fs::write(world.here.path("f"), "here\n").unwrap();
    fs::write(world.there.path("f"), "there\n").unwrap();
    world
}

#[test]
fn a_plain_path_is_local_and_a_colon_selects_the_environment() {
    let world = world();
    assert_eq!(say(&world, &["cat", "f"]), said(0, "here\n", ON_THIS_MACHINE));
    assert_eq!(say(&world, &["cat", ":f"]), said(0, "there\n", ""));
    assert_eq!(say(&world, &["cat", "f", ":f"]), said(0, "here\nthere\n", ""));
    assert_eq!(say(&world, &["ls", "f"]), said(0, "f\n", ON_THIS_MACHINE));
    assert_eq!(say(&world, &["ls", ":"]), said(0, "f\n", ""));
    let here = "remex: `.` is on this machine; write `:` for build, which REMEX_ON selects\n";
    assert_eq!(say(&world, &["ls"]), said(0, "f\n", here));

    assert_eq!(say(&world, &["cp", "f", "g"]), said(0, "", ON_THIS_MACHINE));
    assert_eq!(say(&world, &["cp", "-q", "f", "g"]), said(0, "", ""));
    assert_eq!(say(&world, &["cp", "f", ":g"]), said(0, "", ""));
    assert_eq!(say(&world, &["cp", ":f", "build:h"]), said(0, "", ""));
    assert_eq!(fs::read_to_string(world.there.path("g")).unwrap(), "here\n");
    assert_eq!(fs::read_to_string(world.there.path("h")).unwrap(), "there\n");

    let edit = |path| {
        let mut command = world.here.remex(&["edit", path]);
        let output =
            command.env("REMEX_ON", "build").env("EDITOR", "sed -i s/ere/ey/").stdin(Stdio::null()).output();
        home::said(&output.unwrap())
    };
    assert_eq!(edit("f"), said(0, "", ON_THIS_MACHINE));
    assert_eq!(edit(":f"), said(0, "", ""));
    assert_eq!(fs::read_to_string(world.here.path("f")).unwrap(), "hey\n");
    assert_eq!(fs::read_to_string(world.there.path("f")).unwrap(), "they\n");
}

#[test]
fn without_a_selected_environment_a_colon_is_refused() {
    let world = world();
    let refused = said(
        2,
        "",
        "remex: cannot use `:f`: no environment is selected\n  \
         hint: select one with `remex env default` or REMEX_ON, write `ENV:path`, or `./:f` for a file on this machine\n",
    );
    assert_eq!(world.say(&["cat", ":f"]), refused);
    assert_eq!(world.say(&["cp", "f", ":f"]), refused);
    fs::write(world.here.path(":f"), "odd\n").unwrap();
    assert_eq!(world.say(&["cat", "./:f"]), said(0, "odd\n", ""));
    assert_eq!(world.say(&["cat", "f"]), said(0, "here\n", ""));
}
