//! The copy itself: one walk, in pages, and many files under way.
//!
//! Memory does not grow with the tree: the walk keeps a page for each level, and waits when enough is under way.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, UNIX_EPOCH},
    vec,
};

use remex_client::{
    Error, ErrorKind,
    fs::{AsHostPath as _, DirectoryEntry, Metadata, MetadataKind, Pages, Times, Transfer, entry_name},
};
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    plan::{CopyJob, MARKER, Marker},
    report::Report,
};
use crate::{
    remote::path_arg::{RemotePath, joined, sibling_of},
    render::{failure::Failure, text},
};

/// How many files are under way at once, so that a long way is no brake.
const JOBS: usize = 32;

/// How many of them may be large: each has some blocks in memory.
const LARGE_JOBS: usize = 4;

/// What is longer is copied in blocks, and can be continued; in bytes.
const LARGE: u64 = 256 << 10;

/// Set-user-id and its like do not come from elsewhere.
const PERMISSIONS: u32 = 0o777;

/// What keeps the users of a directory from removing each other's files.
const STICKY: u32 = 0o1000;

/// How many directories may be in each other: more than a path has room for.
const DEEPEST: usize = 2048;

/// Whoever made a directory has to be able to work in it.
const OWNER: u32 = 0o700;

/// For what nobody else has to read.
const PRIVATE: u32 = 0o600;

/// Does all copy_jobs; what goes wrong with single files is reported, and the others go on.
pub(super) async fn copy(copy_jobs: Vec<CopyJob>, report: &Arc<Report>) -> Result<(), Failure> {
    let mut counting = JoinSet::new();
    if report.is_watched() {
        let roots =
            copy_jobs.iter().map(|copy_job| (copy_job.from.clone(), copy_job.metadata.clone())).collect();
        counting.spawn(count(roots, Arc::clone(report)));
    }
    let mut copy = Copy {
        report: Arc::clone(report),
        jobs: JoinSet::new(),
        large: Arc::new(Semaphore::new(LARGE_JOBS)),
        goes_on: false,
        has_failed: Arc::default(),
    };
    for copy_job in copy_jobs {
        copy.copy_job(copy_job).await?;
    }
    copy.finish().await
}

struct Copy {
    report: Arc<Report>,
    jobs: JoinSet<Ended>,
    large: Arc<Semaphore>,
    /// The tree is one that an earlier copy began, so its directories are not somebody else's.
    goes_on: bool,
    /// Something of the current tree could not be copied.
    has_failed: Arc<AtomicBool>,
}

/// What a job leaves: the directory that it worked in, and what went wrong.
struct Ended {
    directory: Option<Arc<Directory>>,
    outcome: Result<(), Failure>,
}

/// A directory that is filled; whoever has work to do in it holds it, and after the last it gets its time.
struct Directory {
    to: RemotePath,
    metadata: Metadata,
    /// It was there before, and keeps its permissions.
    is_kept: bool,
    /// It has the marker of an unfinished copy, which goes when everything was copied.
    is_marked: bool,
    /// Something of the tree could not be copied.
    has_failed: Arc<AtomicBool>,
    parent: Option<Arc<Directory>>,
}

/// A directory that is being read.
struct Frame {
    from: Listing,
    to: RemotePath,
    /// What is at the destination, if it was there before.
    there: Option<Listing>,
    is_marked: bool,
    directory: Option<Arc<Directory>>,
}

/// What to do with one entry.
struct Item {
    from: RemotePath,
    metadata: Metadata,
    to: RemotePath,
    there: Option<Metadata>,
    directory: Option<Arc<Directory>>,
}

impl Copy {
    async fn copy_job(&mut self, copy_job: CopyJob) -> Result<(), Failure> {
        let CopyJob { from, metadata, to, there, marker } = copy_job;
        let metadata = Metadata { is_symlink: false, ..metadata };
        if !metadata.is_directory {
            let is_named = there.as_ref().is_some_and(|there| is_same(&metadata, there));
            // Whoever names a file means its content, not what a time says about it.
            let there = if is_named && !has_same_content(&from, &to).await { None } else { there };
            return self.item(Item { from, metadata, to, there, directory: None }).await;
        }
        let keeps_root = from.is_content && !marker.is_continued;
        self.goes_on = marker.is_continued;
        self.has_failed = Arc::default();
        let marker = (marker.is_continued || there.is_none() && !keeps_root).then_some(marker);
        let item = Item { from, metadata, to, there, directory: None };
        let mut frames = Vec::new();
        match self.enter(item, marker).await {
            Ok(mut frame) => {
                if keeps_root {
                    frame.directory = None;
                }
                frames.push(frame);
            }
            Err(failure) => self.failure(failure)?,
        }
        while let Some(frame) = frames.last_mut() {
            match self.next(frame).await {
                Ok(Some(item)) if is_directory(&item.metadata) && frames.len() >= DEEPEST => {
                    self.failure(Failure::new(
                        format!(
                            "{}: more than {DEEPEST} directories are in each other",
                            cannot_copy(&item.from)
                        ),
                        "copy it by itself",
                    ))?;
                }
                Ok(Some(item)) if is_directory(&item.metadata) => match self.enter(item, None).await {
                    Ok(frame) => frames.push(frame),
                    Err(failure) => self.failure(failure)?,
                },
                Ok(Some(item)) => self.item(item).await?,
                Ok(None) => {
                    let directory = frames.pop().and_then(|frame| frame.directory);
                    self.release(directory);
                }
                Err(failure) => {
                    self.failure(failure)?;
                    let directory = frames.pop().and_then(|frame| frame.directory);
                    self.release(directory);
                }
            }
        }
        Ok(())
    }

    /// Reports what went wrong with a part of the current tree.
    fn failure(&self, failure: Failure) -> Result<(), Failure> {
        self.has_failed.store(true, Relaxed);
        self.report.failure(failure)
    }

    /// Returns the next entry of a directory.
    async fn next(&self, frame: &mut Frame) -> Result<Option<Item>, Failure> {
        let mut next = frame.from.next().await?;
        if frame.is_marked && next.as_ref().is_some_and(|(name, _)| name == MARKER) {
            // An unfinished copy is being copied; what marks it is not content.
            next = frame.from.next().await?;
        }
        let Some((name, metadata)) = next else { return Ok(None) };
        let there = match &mut frame.there {
            Some(there) => there.find(&name).await?,
            None => None,
        };
        Ok(Some(Item {
            from: frame.from.site.join(&name),
            metadata,
            to: frame.to.join(&name),
            there,
            directory: frame.directory.clone(),
        }))
    }

    /// Makes a directory, and begins to read its counterpart.
    async fn enter(&mut self, item: Item, marker: Option<Marker>) -> Result<Frame, Failure> {
        let Item { from, metadata, to, there, directory: parent } = item;
        let is_there = there.as_ref().is_some_and(|there| there.is_directory && !there.is_symlink);
        if there.is_some() && !is_there {
            return Err(Failure::new(
                format!("{}: `{}` is not a directory", cannot_copy(&from), text::plain(&to.shown)),
                "remove it, or copy to another name",
            ));
        }
        // A tree that cannot be read leaves nothing at its destination.
        let read = match &marker {
            Some(_) => Some(Listing::new(from.clone()).await?),
            None => None,
        };
        let make = async {
            match (is_there, &marker) {
                _ if self.report.is_dry() => return Ok(()),
                (true, _) if self.goes_on => return take_up(&from, &to, there.as_ref()).await,
                (true, _) => return Ok(()),
                (false, Some(marker)) => make_marked(&to, marker).await?,
                // The path of the root has no links any more, and below it none is followed, whoever put it there.
                (false, None) => to.at.fs.create_dir_all_without_links(&to.path).await?,
            }
            let mode = directory_permissions(&metadata) | OWNER;
            to.at.fs.set_permissions_without_links(&to.path, mode).await
        };
        let reading = async {
            match read {
                Some(read) => Ok(read),
                None => Listing::new(from.clone()).await,
            }
        };
        let reading_there = async {
            match is_there {
                true => Listing::new(to.clone()).await.map(Some),
                false => Ok(None),
            }
        };
        let (made, reading, there) = tokio::join!(make, reading, reading_there);
        made.map_err(|error| failed(&from, error))?;
        if !is_there {
            self.report.did("make", &from.shown, &to.shown)?;
        }
        let (is_kept, is_marked) = (is_there && !self.goes_on, marker.is_some());
        let has_failed = Arc::clone(&self.has_failed);
        let directory = Directory { to: to.clone(), metadata, is_kept, is_marked, has_failed, parent };
        let directory = (!self.report.is_dry()).then(|| Arc::new(directory));
        Ok(Frame { from: reading?, to, there: there?, is_marked, directory })
    }

    /// Begins to copy what is no directory.
    async fn item(&mut self, item: Item) -> Result<(), Failure> {
        while self.jobs.len() >= JOBS {
            self.join_one().await?;
        }
        let (report, large) = (Arc::clone(&self.report), Arc::clone(&self.large));
        self.jobs.spawn(async move {
            let outcome = Box::pin(item.copy(&report, &large)).await;
            Ended { directory: item.directory, outcome }
        });
        Ok(())
    }

    /// Lets go of a directory; the last one to do so gives it its permissions and its time.
    fn release(&mut self, directory: Option<Arc<Directory>>) {
        let Some(directory) = directory.and_then(Arc::into_inner) else { return };
        let report = Arc::clone(&self.report);
        self.jobs.spawn(async move {
            let outcome = directory.complete(&report).await;
            Ended { directory: directory.parent, outcome }
        });
    }

    async fn join_one(&mut self) -> Result<(), Failure> {
        match self.jobs.join_next().await {
            None => Ok(()),
            Some(Ok(Ended { directory, outcome })) => {
                if let (Some(directory), Err(_)) = (&directory, &outcome) {
                    directory.has_failed.store(true, Relaxed);
                }
                self.release(directory);
                outcome.or_else(|failure| self.report.failure(failure))
            }
            Some(Err(failed)) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Only who drops the set ends a job.
                Err(_) => Ok(()),
            },
        }
    }

    async fn finish(&mut self) -> Result<(), Failure> {
        while !self.jobs.is_empty() {
            self.join_one().await?;
        }
        Ok(())
    }
}

impl Directory {
    async fn complete(&self, report: &Report) -> Result<(), Failure> {
        let (fs, path) = (&self.to.at.fs, &self.to.path);
        let times = Times { modified: time(self.metadata.modified_at_ms), accessed: None };
        let is_unfinished = self.is_marked && self.has_failed.load(Relaxed);
        if is_unfinished {
            report.left(joined(&self.to.shown, OsStr::new(MARKER)));
        }
        let done = async {
            if self.is_marked && !is_unfinished {
                fs.remove_all(path.join(MARKER)).await?;
            }
            if !self.is_kept {
                fs.set_permissions_without_links(path, directory_permissions(&self.metadata)).await?;
            }
            fs.set_times(path, times).await
        };
        done.await.map_err(|error| failed(&self.to, error))
    }
}

impl Item {
    async fn copy(&self, report: &Report, large: &Semaphore) -> Result<(), Failure> {
        let Self { from, metadata, to, there, .. } = self;
        report.begin(&from.shown);
        let there = there.as_ref();
        if there.is_some_and(|there| there.is_directory && !there.is_symlink) {
            return Err(Failure::new(
                format!("{}: `{}` is a directory", cannot_copy(from), text::plain(&to.shown)),
                "remove it, or copy to another name",
            ));
        }
        if there.is_some_and(|there| is_special(there) && !there.is_symlink) {
            return Err(special_is_there(from, to));
        }
        match kind(metadata) {
            Some(MetadataKind::Symlink) => self.link(report).await,
            Some(MetadataKind::File) if there.is_some_and(|there| is_same(metadata, there)) => {
                self.skip(report).await
            }
            Some(MetadataKind::File) => {
                let _room = if metadata.size > LARGE { large.acquire().await.ok() } else { None };
                self.file(report).await
            }
            _ => {
                report.specials.fetch_add(1, Relaxed);
                Err(Failure::new(
                    format!("{}: it is a pipe, socket or device, and is skipped", cannot_copy(from)),
                    "copy what is read from it with `remex run`, if that is what you want",
                ))
            }
        }
    }

    async fn file(&self, report: &Report) -> Result<(), Failure> {
        let Self { from, metadata, to, .. } = self;
        if !report.is_dry() {
            let path = |site: &RemotePath| site.path.as_host_path();
            let transfer = Transfer {
                from: from.at.fs.clone(),
                source: path(from).map_err(|error| failed(from, error))?,
                metadata: metadata.clone(),
                to: to.at.fs.clone(),
                destination: path(to).map_err(|error| failed(to, error))?,
            };
            let (mut so_far, mut is_found) = (0, metadata.size > LARGE);
            let progress = |bytes: u64| {
                // A large file first tells what an earlier copy has left.
                let more = bytes.saturating_sub(so_far);
                if std::mem::take(&mut is_found) {
                    report.found(more);
                } else {
                    report.moved(more);
                }
                // It may have to begin anew.
                so_far = so_far.max(bytes);
            };
            // A file in a tree that is killed is cleaned up by the next copy of the tree; one that was named is not.
            let done = async {
                match self.directory {
                    Some(_) => transfer.run(progress).await,
                    None => transfer.run_with_part(progress).await,
                }
            };
            if let Err(error) = done.await {
                self.report_part(&transfer, report).await;
                return Err(failed(from, error));
            }
        }
        report.files.fetch_add(1, Relaxed);
        report.did("copy", &from.shown, &to.shown)
    }

    /// Reports the part that a failed transfer has left for the next one.
    async fn report_part(&self, transfer: &Transfer, report: &Report) {
        let Ok(part) = transfer.part() else { return };
        let name = part.native().ok().and_then(Path::file_name);
        if let (Some(name), Ok(true)) = (name, self.to.at.fs.exists(&part).await) {
            report.left(sibling_of(&self.to.shown, name));
        }
    }

    async fn link(&self, report: &Report) -> Result<(), Failure> {
        let Self { from, to, there, .. } = self;
        let target = from.at.fs.read_link(&from.path).await.map_err(|error| failed(from, error))?;
        let target: OsString = std::os::unix::ffi::OsStringExt::from_vec(target.target_base64.to_vec());
        let is_same = there.as_ref().is_some_and(|there| {
            there.is_symlink && there.link_target.as_deref() == target.to_str() && target.to_str().is_some()
        });
        if is_same {
            report.skipped.fetch_add(1, Relaxed);
            return report.did("skip", &from.shown, &to.shown);
        }
        if !report.is_dry() {
            let made = to.at.fs.replace_with_symlink(target, &to.path).await;
            made.map_err(|error| failed(from, error))?;
        }
        report.files.fetch_add(1, Relaxed);
        report.did("link", &from.shown, &to.shown)
    }

    /// Leaves what is there, but for its permissions.
    async fn skip(&self, report: &Report) -> Result<(), Failure> {
        let Self { from, metadata, to, there, .. } = self;
        let mode = permissions(metadata);
        let is_other = there.as_ref().is_some_and(|there| permissions(there) != mode);
        if is_other && !report.is_dry() {
            let set = to.at.fs.set_permissions(&to.path, mode).await;
            set.map_err(|error| failed(from, error))?;
        }
        report.found(metadata.size);
        report.skipped.fetch_add(1, Relaxed);
        report.did("skip", &from.shown, &to.shown)
    }
}

/// Makes a directory that has its marker from the moment it is there, or nothing at all.
async fn make_marked(to: &RemotePath, marker: &Marker) -> Result<(), Error> {
    let fs = &to.at.fs;
    let new = beside(&to.path, ".remex-new");
    let path = new.join(MARKER);
    let made = async {
        // Left by a copy that was killed, it may be there already.
        fs.create_dir_all_without_links(&new).await?;
        fs.write(&path, &marker.text).await?;
        fs.set_permissions(&path, PRIVATE).await?;
        fs.rename_new(&new, &to.path).await
    };
    let Err(error) = made.await else { return Ok(()) };
    // Never recursive: what is not ours stays.
    let _ = fs.remove(&path).await;
    let _ = fs.remove(&new).await;
    // Another copy of the same source may have been faster, or a lost connection hid that this one was.
    if marker.is_in(to).await { Ok(()) } else { Err(error) }
}

/// Prepares a directory that an earlier copy has made: removes what it left when it was killed, and lets us write.
async fn take_up(from: &RemotePath, to: &RemotePath, there: Option<&Metadata>) -> Result<(), Error> {
    let fs = &to.at.fs;
    if let Some(mode) = there.and_then(|there| there.mode).filter(|mode| mode & OWNER != OWNER) {
        fs.set_permissions_without_links(&to.path, mode & (PERMISSIONS | STICKY) | OWNER).await?;
    }
    let mut pages = fs.read_dir_pages(&to.path)?;
    let mut leftovers = Vec::new();
    while let Some(page) = pages.next().await? {
        for entry in page {
            let is_file = |there: &Metadata| there.is_file && !there.is_symlink;
            let name = entry_name(&to.path, &entry)?;
            if let Some(leftover) = Leftover::parse(&name)
                && entry.metadata.as_deref().is_some_and(is_file)
            {
                leftovers.push((leftover, name));
            }
        }
    }
    for (leftover, name) in leftovers {
        let is_needed = match leftover {
            Leftover::Part { of } => has_entry(from, &of).await? || has_entry(from, &name).await?,
            Leftover::Whole => has_entry(from, &name).await?,
        };
        if !is_needed {
            match fs.remove(to.path.join(&name)).await {
                Err(error) if error.refusal() != Some(ErrorKind::NotFound) => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

async fn has_entry(directory: &RemotePath, name: &OsStr) -> Result<bool, Error> {
    let path = directory.path.join(name);
    // A link that leads nowhere is an entry, too.
    Ok(directory.at.fs.exists(&path).await? || directory.at.fs.read_link(&path).await.is_ok())
}

/// What a transfer that was killed leaves beside its destination.
#[derive(Debug, PartialEq, Eq)]
enum Leftover {
    /// `.NAME.remex-0123456789abcdef`: a small file, which nothing continues.
    Whole,
    /// `.NAME.remex-part`: a large file, which the next transfer continues.
    Part { of: OsString },
}

impl Leftover {
    fn parse(name: &OsStr) -> Option<Self> {
        const WORD: &[u8] = b".remex-";
        let rest = name.as_bytes().strip_prefix(b".")?;
        let at = rest.windows(WORD.len()).rposition(|window| window == WORD).filter(|at| *at > 0)?;
        let (of, ending) = (&rest[..at], &rest[at + WORD.len()..]);
        let is_random = |ending: &[u8]| ending.len() == 16 && ending.iter().all(u8::is_ascii_hexdigit);
        match ending {
            b"part" => Some(Self::Part { of: OsStr::from_bytes(of).to_owned() }),
            ending if is_random(ending) => Some(Self::Whole),
            _ => None,
        }
    }
}

/// Returns a hidden name beside a path.
fn beside(path: &Path, ending: &str) -> PathBuf {
    /// With the dot and the ending a name has at most 255 bytes.
    const KEPT: usize = 200;
    let name = path.file_name().unwrap_or_default().as_bytes();
    let mut hidden = b".".to_vec();
    hidden.extend_from_slice(&name[..name.len().min(KEPT)]);
    hidden.extend_from_slice(ending.as_bytes());
    path.with_file_name(OsStr::from_bytes(&hidden))
}

/// What is in a directory, in the order of the names, a page at a time.
struct Listing {
    site: RemotePath,
    pages: Pages,
    page: vec::IntoIter<DirectoryEntry>,
    /// Taken from the page, and not yet asked for.
    ahead: Option<(OsString, Metadata)>,
    /// The name that was read last.
    last: Option<OsString>,
}

impl Listing {
    /// Reads the first page.
    async fn new(site: RemotePath) -> Result<Self, Failure> {
        let mut pages = site.at.fs.read_dir_pages(&site.path).map_err(|error| failed(&site, error))?;
        let page = pages.next().await.map_err(|error| failed(&site, error))?;
        Ok(Self { site, pages, page: page.unwrap_or_default().into_iter(), ahead: None, last: None })
    }

    async fn next(&mut self) -> Result<Option<(OsString, Metadata)>, Failure> {
        if let Some(ahead) = self.ahead.take() {
            return Ok(Some(ahead));
        }
        loop {
            if let Some(entry) = self.page.next() {
                let name = entry_name(&self.site.path, &entry).map_err(|error| failed(&self.site, error))?;
                // A name that comes twice could first be a link, and then be followed as a directory.
                if !is_after(&name, self.last.as_deref()) {
                    return Err(Failure::new(
                        format!(
                            "{}: its server lists `{}` twice, or out of order",
                            cannot_copy(&self.site),
                            text::plain(&name.to_string_lossy())
                        ),
                        "try again; if it stays so, do not trust that server",
                    ));
                }
                self.last = Some(name.clone());
                let metadata = match entry.metadata {
                    Some(metadata) => *metadata,
                    // It went between the listing and the look at it, or comes now.
                    None => match self.site.at.fs.metadata(self.site.path.join(&name)).await {
                        Ok(metadata) => metadata,
                        Err(Error::Refused(_)) => continue,
                        Err(error) => return Err(failed(&self.site, error)),
                    },
                };
                return Ok(Some((name, metadata)));
            }
            let page = self.pages.next().await.map_err(|error| failed(&self.site, error))?;
            let Some(page) = page else { return Ok(None) };
            self.page = page.into_iter();
        }
    }

    /// Finds an entry; names are asked for in their order.
    async fn find(&mut self, name: &OsString) -> Result<Option<Metadata>, Failure> {
        while let Some((found, metadata)) = self.next().await? {
            if found == *name {
                return Ok(Some(metadata));
            }
            if found > *name {
                self.ahead = Some((found, metadata));
                break;
            }
        }
        Ok(None)
    }
}

fn is_after(name: &OsStr, last: Option<&OsStr>) -> bool {
    last.is_none_or(|last| name > last)
}

/// Counts what there is to do. What cannot be read is said by the copy itself.
async fn count(roots: Vec<(RemotePath, Metadata)>, report: Arc<Report>) {
    for (root, metadata) in roots {
        let mut listings = Vec::new();
        if metadata.is_directory {
            listings.extend(Listing::new(root).await.ok());
        } else {
            report.total_files.fetch_add(1, Relaxed);
            report.total_bytes.fetch_add(metadata.size, Relaxed);
        }
        while let Some(listing) = listings.last_mut() {
            match listing.next().await {
                Ok(Some((name, metadata))) if is_directory(&metadata) => {
                    let site = listing.site.join(&name);
                    listings.extend(Listing::new(site).await.ok());
                }
                Ok(Some((_, metadata))) => {
                    let is_file = kind(&metadata) == Some(MetadataKind::File);
                    report.total_files.fetch_add(1, Relaxed);
                    report.total_bytes.fetch_add(if is_file { metadata.size } else { 0 }, Relaxed);
                }
                Ok(None) | Err(_) => drop(listings.pop()),
            }
        }
    }
    report.counted();
}

/// Compares what is in two files.
async fn has_same_content(from: &RemotePath, to: &RemotePath) -> bool {
    let hashes = tokio::join!(from.at.fs.hash(&from.path), to.at.fs.hash(&to.path));
    matches!(hashes, (Ok(from), Ok(to)) if from == to)
}

/// Tells whether a file need not be copied, as far as size and time tell.
fn is_same(from: &Metadata, there: &Metadata) -> bool {
    there.is_file
        && !there.is_symlink
        && (from.size, from.modified_at_ms) == (there.size, there.modified_at_ms)
}

/// Tells what is neither file nor directory nor link.
pub(super) fn is_special(metadata: &Metadata) -> bool {
    !metadata.is_file && !metadata.is_directory && metadata.kind != Some(MetadataKind::Symlink)
}

pub(super) fn special_is_there(from: &RemotePath, to: &RemotePath) -> Failure {
    Failure::new(
        format!("{}: `{}` is a pipe, socket or device", cannot_copy(from), text::plain(&to.shown)),
        "remove it, or copy to another name",
    )
}

fn is_directory(metadata: &Metadata) -> bool {
    metadata.is_directory && !metadata.is_symlink
}

fn kind(metadata: &Metadata) -> Option<MetadataKind> {
    if metadata.is_symlink { Some(MetadataKind::Symlink) } else { metadata.kind }
}

fn permissions(metadata: &Metadata) -> u32 {
    metadata.mode.unwrap_or(0o755) & PERMISSIONS
}

fn directory_permissions(metadata: &Metadata) -> u32 {
    metadata.mode.unwrap_or(0o755) & (PERMISSIONS | STICKY)
}

fn time(ms: i64) -> Option<std::time::SystemTime> {
    let distance = Duration::from_millis(ms.unsigned_abs());
    if ms < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) }
}

fn cannot_copy(from: &RemotePath) -> String {
    format!("cannot copy `{}`", text::plain(&from.shown))
}

fn failed(site: &RemotePath, error: Error) -> Failure {
    // What goes missing on the way is not what was asked for and is not there.
    Failure::from(error).context(&cannot_copy(site)).on_the_way()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_transfers_leave_is_a_leftover() {
        let parse = |name: &str| Leftover::parse(OsStr::new(name));
        assert_eq!(parse(".a.remex-0123456789abcdef"), Some(Leftover::Whole));
        assert_eq!(parse(".a.remex-b.remex-part"), Some(Leftover::Part { of: "a.remex-b".into() }));
        for name in [".remex-part", "..remex-part", "a.remex-part", ".a.remex-0123", ".a.remex-parts", ".a"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_listing_never_names_anything_twice() {
        let is_after = |name: &str, last: &str| is_after(OsStr::new(name), Some(OsStr::new(last)));
        assert!(is_after("b", "a") && is_after("aa", "a") && is_after("a", "B"));
        assert!(!is_after("a", "a") && !is_after("a", "b") && !is_after("a", "aa"));
    }
}
