//! The approximate memory of values, which have no encoded length, for the bounds on queues.
//!
//! Only members that can be large are counted. Start at [`Reply`].

use remex_proto::{
    Call, HostPath, ServerNote,
    call::Empty,
    discovery,
    environment::{ConfigReply, Info, StatusReply},
    fs, http, initialize, process, session,
};
use serde::Serialize;

/// The size of a value that is never large.
const SMALL: usize = 256;

/// The answer to a request, as defined in the method table.
pub(crate) trait Reply: Serialize + Send + 'static {
    /// Returns the approximate number of bytes it holds.
    fn size(&self) -> usize {
        SMALL
    }
}

macro_rules! small {
    ($($reply:ty)*) => {
        $(impl Reply for $reply {})*
    };
}

small! {
    Empty Info StatusReply initialize::Reply
    process::Started process::WriteReply process::Terminated process::Sought
    fs::SetPermissionsReply fs::WriteFileReply fs::Metadata fs::CanonicalizeReply fs::OpenReply fs::WatchMissingReply fs::LinkTarget
    fs::FileHash
}

macro_rules! sized {
    ($($reply:ty, $value:ident => $size:expr;)*) => {
        $(impl Reply for $reply {
            fn size(&self) -> usize {
                let $value = self;
                SMALL + $size
            }
        })*
    };
}

sized! {
    process::ReadReply, reply => reply.chunks.iter().map(|chunk| SMALL / 4 + chunk.chunk.len()).sum::<usize>();
    process::Waited, reply => reply.matched.as_ref().map_or(0, |matched| matched.len());
    process::SnapshotReply, reply => reply.stdout.len() + reply.stderr.len() + reply.terminal.len();
    process::Listing, reply => reply.processes.iter().map(process_entry).sum::<usize>();
    process::Collected, reply => reply.processes.iter().map(|one| SMALL + one.process_id.len()).sum::<usize>();
    session::Listing, reply => SMALL * reply.sessions.len();
    fs::ReadFileReply, reply => reply.data_base64.len();
    fs::Block, reply => reply.chunk.len();
    fs::DirectoryListing, reply => reply.entries.iter().map(|entry| SMALL + entry.file_name.len()).sum::<usize>();
    fs::WalkReply, reply => reply.entries.iter().map(|entry| path(&entry.path)).sum::<usize>()
        + reply.errors.iter().map(|error| path(&error.path) + error.message.len()).sum::<usize>();
    fs::SearchReply, reply => reply.files.iter().map(found_file).sum::<usize>()
        + reply.errors.iter().map(|error| path(&error.path) + error.message.len()).sum::<usize>();
    http::HttpResponse, reply => reply.body_base64.len()
        + reply.headers.iter().map(|header| header.name.len() + header.value.len()).sum::<usize>();
    ConfigReply, reply => [&reply.config, &reply.requirements]
        .into_iter()
        .flat_map(|part| &part.layers)
        .map(|layer| SMALL + layer.toml.len())
        .sum::<usize>();
    discovery::DiscoverRootsReply, reply => reply.roots.iter().map(|root| {
        root.plugin.as_ref().map_or(0, plugin_files)
            + root.skills.iter().map(skill_files).sum::<usize>()
            + root.namespace_manifests.iter().map(text_file).sum::<usize>()
            + root.warnings.iter().map(|warning| SMALL / 4 + warning.len()).sum::<usize>()
    }).sum::<usize>();
    discovery::DiscoverReply, reply => reply.skills.iter().map(skill).sum::<usize>()
        + reply.plugins.iter().map(|plugin| {
            plugin_files(&plugin.files) + plugin.skills.iter().map(skill).sum::<usize>()
        }).sum::<usize>()
        + reply.warnings.iter().map(|warning| SMALL / 4 + warning.len()).sum::<usize>();
}

/// Returns the approximate number of bytes that a request holds.
pub(crate) fn of_call(call: &Call) -> usize {
    SMALL
        + match call {
            Call::ProcessStart(start) => {
                let env = start.env.iter().map(|(name, value)| name.len() + value.len());
                let argv = start.argv.iter().map(String::len);
                let bytes = start.argv_base64.iter().flatten().map(|word| word.len());
                argv.chain(bytes).chain(env).sum::<usize>()
            }
            Call::ProcessWrite(write) => write.chunk.len(),
            Call::FsWriteFile(write) => write.data_base64.size(),
            Call::FsWriteBlock(write) => write.chunk.len(),
            Call::HttpRequest(request) => request.body_base64.as_ref().map_or(0, |body| body.len()),
            _ => 0,
        }
}

/// Returns the approximate number of bytes that a notification holds.
pub(super) fn of_note(note: &ServerNote) -> usize {
    SMALL / 2
        + match note {
            ServerNote::ProcessOutput(output) => output.process_id.len() + output.chunk.len(),
            ServerNote::HttpBodyDelta(delta) => delta.delta_base64.len(),
            ServerNote::FsChanged(changed) => changed.changes.iter().map(|change| path(&change.path)).sum(),
            _ => 0,
        }
}

fn found_file(file: &fs::FoundFile) -> usize {
    path(&file.path) + file.lines.iter().map(|line| SMALL / 4 + line.text.len()).sum::<usize>()
}

fn path(path: &HostPath) -> usize {
    SMALL / 4 + path.native().map_or(SMALL, |native| native.as_os_str().len())
}

fn plugin_files(files: &discovery::PluginFiles) -> usize {
    let configs = [&files.mcp_config, &files.apps_config];
    text_file(&files.manifest) + configs.into_iter().flatten().map(text_file).sum::<usize>()
}

fn skill_files(files: &discovery::SkillFiles) -> usize {
    text_file(&files.instructions) + files.metadata.as_ref().map_or(0, text_file)
}

fn text_file(file: &discovery::TextFile) -> usize {
    path(&file.path) + file.contents.len()
}

fn skill(skill: &discovery::Skill) -> usize {
    2 * SMALL + path(&skill.path) + skill.name.len() + skill.description.len()
}

fn process_entry(entry: &process::Entry) -> usize {
    let labels = entry.labels.iter().map(|(name, value)| name.len() + value.len());
    2 * SMALL + entry.argv.iter().map(String::len).sum::<usize>() + labels.sum::<usize>()
}
