//! Metadata of a path: kind, size, times, owner, mode.

use std::os::fd::AsFd;

use remex_access::scope::FileAccess;
use remex_base::nofollow;
use remex_proto::{RpcError, fs as wire};
use rustix::{
    fs::{AtFlags, FileType, Statx, StatxFlags, StatxTimestamp, readlinkat, statx},
    io::Errno,
    path::Arg,
};

use super::{FileWork, PathAccess, PathGuard, io_error, native, open::Links};

impl FileWork for wire::GetMetadata {
    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::reads(&self.path)
    }

    fn run(&self, guard: &PathGuard, _wanted: &super::CancelCheck) -> Result<wire::Metadata, RpcError> {
        let path = native(&self.path)?;
        let failed = |error: Errno| io_error(&error.into(), path);
        let links = Links::from(self.follow_symlinks);
        let at = guard.entry(path, links, FileAccess::Read)?;
        let own = of_entry(at.directory(), at.name()).map_err(failed)?;
        if !own.is_symlink {
            return Ok(own);
        }
        if links == Links::Refuse {
            return Err(nofollow::refusal(path));
        }
        let at = guard.target(path, links, FileAccess::Read)?;
        let flags = match at.links_from_here() {
            Links::Follow => AtFlags::empty(),
            Links::Refuse => AtFlags::SYMLINK_NOFOLLOW,
        };
        let mut target = describe(&stat(at.directory(), at.name(), flags).map_err(failed)?);
        target.is_symlink = true;
        target.link_target = own.link_target;
        Ok(target)
    }
}

/// Returns the metadata of the entry itself, even if it is a link.
pub(super) fn of_entry<P: Arg + Copy>(directory: impl AsFd, name: P) -> Result<wire::Metadata, Errno> {
    let mut metadata = describe(&stat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)?);
    if metadata.is_symlink {
        let target = readlinkat(directory, name, Vec::new())?;
        metadata.link_target = Some(target.to_string_lossy().into_owned());
    }
    Ok(metadata)
}

fn stat<P: Arg>(directory: impl AsFd, name: P, flags: AtFlags) -> Result<Statx, Errno> {
    statx(directory, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

fn describe(stat: &Statx) -> wire::Metadata {
    let mode = u32::from(stat.stx_mode);
    let file_type = FileType::from_raw_mode(mode);
    let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let mut metadata = wire::Metadata::default();
    metadata.is_directory = file_type == FileType::Directory;
    metadata.is_file = file_type == FileType::RegularFile;
    metadata.is_symlink = file_type == FileType::Symlink;
    metadata.size = stat.stx_size;
    metadata.created_at_ms = if has_birth { milliseconds(&stat.stx_btime) } else { 0 };
    metadata.modified_at_ms = milliseconds(&stat.stx_mtime);
    metadata.kind = Some(match file_type {
        FileType::RegularFile => wire::MetadataKind::File,
        FileType::Directory => wire::MetadataKind::Directory,
        FileType::Symlink => wire::MetadataKind::Symlink,
        FileType::Fifo => wire::MetadataKind::Fifo,
        FileType::Socket => wire::MetadataKind::Socket,
        _ => wire::MetadataKind::Device,
    });
    metadata.mode = Some(mode & 0o7777);
    metadata.uid = Some(stat.stx_uid);
    metadata.gid = Some(stat.stx_gid);
    metadata
}

fn milliseconds(time: &StatxTimestamp) -> i64 {
    time.tv_sec.saturating_mul(1000).saturating_add(i64::from(time.tv_nsec / 1_000_000))
}
