//! Files of tokens that may write but not plant programs with the privileges of the server's user.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Client, Guarded, encode, token_of, uri};

/// A directory where a token may read and write.
struct Scene {
    place: TempDir,
    guarded: Guarded,
}

impl Scene {
    /// `scope` has `DIR` in the place of the directory.
    fn new(scope: &str) -> Self {
        let place = tempfile::tempdir().expect("a directory can be made");
        let directory = place.path().canonicalize().expect("it exists");
        let scope = scope.replace("DIR", directory.to_str().expect("the path is text"));
        let guarded = Guarded::with_tokens(&format!("{} name=writer scope={scope}\n", token_of("writer")));
        Scene { place, guarded }
    }

    fn client(&self) -> Client {
        self.guarded.client(&token_of("writer"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().canonicalize().expect("it exists").join(name)
    }

    fn uri(&self, name: &str) -> String {
        uri(&self.path(name))
    }

    fn create(&self, name: &str, mode: u32) {
        fs::write(self.path(name), "old").expect("the directory is ours");
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).expect("the file is ours");
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path(name)).expect("it exists").permissions().mode() & 0o7777
    }

    /// Opens a file, writes a block, and closes it.
    fn write_block(&self, client: &Client, name: &str, more: Value) {
        let open = crate::support::with(json!({"handleId": "h", "path": self.uri(name)}), more);
        client.call("fs/open", open).expect("it may write");
        let block = json!({"handleId": "h", "offset": 0, "chunk": encode(b"new")});
        client.call("fs/writeBlock", block).expect("it may write");
        client.call("fs/close", json!({"handleId": "h"})).expect("it is open");
    }

    /// Does everything that could leave a file with set-user-ID or set-group-ID; returns the modes of all files.
    fn plant(&self) -> Vec<(String, u32)> {
        let client = self.client();
        let call = |method: &str, params: Value| client.call(method, params).expect(method);
        let names = [
            "chmod",
            "chmod-nofollow",
            "in-place",
            "atomic",
            "copy",
            "tree/f",
            "write",
            "replace",
            "replace-atomic",
        ];
        for name in ["chmod", "chmod-nofollow"] {
            self.create(name, 0o755);
        }
        let changed = call("fs/setPermissions", json!({"path": self.uri("chmod"), "mode": 0o6755}));
        let left_out = changed["leftOut"].as_u64().unwrap_or_default();
        assert_eq!(
            left_out,
            0o6755 - u64::from(self.mode("chmod")),
            "the answer says what was left out: {changed}"
        );
        let plain = call("fs/setPermissions", json!({"path": self.uri("chmod-nofollow"), "mode": 0o700}));
        assert_eq!(plain, json!({}));
        let nofollow = json!({"path": self.uri("chmod-nofollow"), "mode": 0o6755, "followSymlinks": false});
        call("fs/setPermissions", nofollow);

        for name in ["in-place", "atomic", "write", "replace", "replace-atomic", "source"] {
            self.create(name, 0o6755);
        }
        let written = |name: &str, atomic: bool| json!({"path": self.uri(name), "dataBase64": encode(b"new"), "atomic": atomic});
        call("fs/writeFile", written("in-place", false));
        call("fs/writeFile", written("atomic", true));
        self.write_block(&client, "write", json!({"mode": "write"}));
        self.write_block(&client, "replace", json!({"mode": "replace"}));
        self.write_block(&client, "replace-atomic", json!({"mode": "replace", "atomic": true}));

        let copied = |from: &str, to: &str, recursive: bool| json!({"sourcePath": self.uri(from), "destinationPath": self.uri(to), "recursive": recursive});
        call("fs/copy", copied("source", "copy", false));
        fs::create_dir(self.path("from")).expect("the directory is ours");
        self.create("from/f", 0o6755);
        call("fs/copy", copied("from", "tree", true));
        names.iter().map(|name| ((*name).to_owned(), self.mode(name))).collect()
    }
}

#[test]
fn a_file_writer_cannot_create_set_id_programs() {
    for scope in ["files:read=DIR,files:write=DIR", "files:read,files:write"] {
        let scene = Scene::new(scope);
        for (name, mode) in scene.plant() {
            assert_eq!(format!("{mode:o}"), "755", "{name} with {scope}");
        }
        // Directories give their group to what is in them, as shared ones do, but nothing runs as that.
        fs::create_dir(scene.path("shared")).expect("the directory is ours");
        let shared = json!({"path": scene.uri("shared"), "mode": 0o6775});
        let changed = scene.client().call("fs/setPermissions", shared).expect("it may write");
        assert_eq!(changed, json!({"leftOut": 0o4000}), "{scope}");
        assert_eq!(format!("{:o}", scene.mode("shared")), "2775", "{scope}");
    }
}

#[test]
fn the_scope_for_set_id_bits_allows_setting_and_keeping_them() {
    for scope in ["files:read=DIR,files:write=DIR,files:setid", "all"] {
        for (name, mode) in Scene::new(scope).plant() {
            // For other users than root, the kernel removes them when a file is written in place.
            let is_kept =
                rustix::process::geteuid().is_root() || !["in-place", "write", "replace"].contains(&&*name);
            assert_eq!(format!("{mode:o}"), if is_kept { "6755" } else { "755" }, "{name} with {scope}");
        }
    }
}

#[test]
fn a_file_made_set_id_while_open_loses_the_bit_on_write() {
    let scene = Scene::new("files:read=DIR,files:write=DIR");
    let client = scene.client();
    scene.create("f", 0o755);
    client
        .call("fs/open", json!({"handleId": "h", "path": scene.uri("f"), "mode": "write"}))
        .expect("it may write");
    // As the script of an administrator may do.
    fs::set_permissions(scene.path("f"), fs::Permissions::from_mode(0o6755)).expect("the file is ours");
    let block = json!({"handleId": "h", "offset": 0, "chunk": encode(b"new")});
    client.call("fs/writeBlock", block).expect("it may write");
    assert_eq!(scene.mode("f"), 0o755);
}
