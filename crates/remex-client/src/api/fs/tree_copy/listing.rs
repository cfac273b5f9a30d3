//! Reads directories for a copy, one page at a time.

use std::{
    ffi::{OsStr, OsString},
    sync::Arc,
    vec,
};

use super::{
    CopyObserver, CopyPath, CopyProblem, DEEPEST, Failure, Filter,
    endpoint::CopyEndpoint,
    failed, is_directory, is_special, kind, local,
    rules::{DirectoryRules, TreeRules},
};
use crate::{
    Error,
    api::fs::{DirectoryEntry, Metadata, MetadataKind, Pages, entry_name, is_not_found, path::join},
};

/// The entries of a directory, read one page at a time.
pub(super) struct Listing {
    pub(super) directory: CopyEndpoint,
    entries: Entries,
    /// An entry that was taken from the page but not returned yet.
    ahead: Option<(OsString, Metadata)>,
    /// The name that was read last, if they have to be sorted.
    last: Option<OsString>,
}

enum Entries {
    Local(local::Entries),
    Remote { at: CopyPath, pages: Pages, page: vec::IntoIter<DirectoryEntry> },
}

/// An entry of a directory.
pub(super) struct Listed {
    pub(super) name: OsString,
    pub(super) metadata: Result<Metadata, Error>,
}

impl Listing {
    /// Reads the first page of a directory, in any order.
    pub(super) async fn new(directory: CopyEndpoint) -> Result<Self, Failure> {
        let opening = async {
            match &directory {
                CopyEndpoint::Local(path) => Ok(Entries::Local(local::Entries::open(path).await?)),
                CopyEndpoint::Remote(at) => {
                    let mut pages = at.fs.read_dir_pages(&at.path)?;
                    let page = pages.next().await?.unwrap_or_default().into_iter();
                    Ok(Entries::Remote { at: at.clone(), pages, page })
                }
            }
        };
        let entries = opening.await.map_err(|error| failed(&directory, error))?;
        Ok(Self { directory, entries, ahead: None, last: None })
    }

    /// Reads the first page of a directory that has to be sorted by name.
    pub(super) async fn sorted(directory: CopyEndpoint) -> Result<Self, Failure> {
        Ok(Self { last: Some(OsString::new()), ..Self::new(directory).await? })
    }

    pub(super) async fn next(&mut self) -> Result<Option<Listed>, Failure> {
        if let Some((name, metadata)) = self.ahead.take() {
            return Ok(Some(Listed { name, metadata: Ok(metadata) }));
        }
        let Self { directory, entries, last, .. } = self;
        let next = match entries {
            Entries::Local(entries) => entries.next().await,
            Entries::Remote { at, pages, page } => next_remote(at, pages, page).await,
        };
        let next = next.map_err(|error| failed(directory, error))?;
        if let (Some(last), Some(Listed { name, .. })) = (last, &next) {
            // A duplicate name could be a link first, and then be followed as a directory.
            if !is_after(name, last) {
                let name = name.to_string_lossy().into_owned();
                return Err(Failure::new(directory, CopyProblem::Unordered { name }));
            }
            last.clone_from(name);
        }
        Ok(next)
    }

    /// Finds an entry of a sorted directory, and passes those before it to `passed`; callers must ask in the order of names.
    pub(super) async fn find(
        &mut self,
        name: &OsString,
        mut passed: impl FnMut(OsString, &Metadata),
    ) -> Result<Option<Metadata>, Failure> {
        while let Some(Listed { name: found, metadata }) = self.next().await? {
            let metadata = metadata.map_err(|error| failed(&self.directory.join(&found), error))?;
            if found == *name {
                return Ok(Some(metadata));
            }
            if found > *name {
                self.ahead = Some((found, metadata));
                break;
            }
            passed(found, &metadata);
        }
        Ok(None)
    }
}

fn is_after(name: &OsStr, last: &OsStr) -> bool {
    name > last
}

async fn next_remote(
    directory: &CopyPath,
    pages: &mut Pages,
    page: &mut vec::IntoIter<DirectoryEntry>,
) -> Result<Option<Listed>, Error> {
    loop {
        let Some(entry) = page.next() else {
            let Some(next) = pages.next().await? else { return Ok(None) };
            *page = next.into_iter();
            continue;
        };
        let name = entry_name(&directory.path, &entry)?;
        let metadata = match entry.metadata {
            Some(metadata) => Ok(*metadata),
            None => match directory.fs.metadata(join(&directory.path, &name)).await {
                // The entry vanished between the listing and this call.
                Err(error) if is_not_found(&error) => continue,
                looked => looked,
            },
        };
        return Ok(Some(Listed { name, metadata }));
    }
}

/// Counts the files and bytes to copy. Errors are ignored: the copy itself reports them.
pub(super) async fn count<O: CopyObserver>(
    roots: Vec<(CopyEndpoint, Metadata, TreeRules)>,
    observer: Arc<O>,
) {
    for (root, metadata, rules) in roots {
        if !metadata.is_directory {
            observer.on_counted(1, metadata.size);
            continue;
        }
        count_tree(root, rules, None, |metadata| {
            let is_file = kind(metadata) == Some(MetadataKind::File);
            observer.on_counted(1, if is_file { metadata.size } else { 0 });
        })
        .await;
    }
    observer.on_total_known();
}

/// Passes everything to copy to `counted`, except directories.
pub(in crate::api::fs) async fn count_tree(
    root: CopyEndpoint,
    rules: TreeRules,
    filter: Option<Filter<'_>>,
    mut counted: impl FnMut(&Metadata),
) {
    let mut listings = Vec::new();
    listings.extend(open(root, DirectoryRules::root(rules)).await.ok());
    while let Some((listing, rules)) = listings.last_mut() {
        let Ok(Some(Listed { name, metadata })) = listing.next().await else {
            listings.pop();
            continue;
        };
        let Ok(metadata) = metadata else { continue };
        if rules.exclude(&name, is_directory(&metadata))
            || filter.is_some_and(|wants| !wants(&rules.path_of(&name), &metadata))
        {
            continue;
        }
        if is_directory(&metadata) {
            let (directory, rules) = (listing.directory.join(&name), rules.enter(&name));
            if listings.len() < DEEPEST {
                listings.extend(open(directory, rules).await.ok());
            }
        } else if !is_special(&metadata) {
            counted(&metadata);
        }
    }
}

async fn open(
    directory: CopyEndpoint,
    mut rules: DirectoryRules,
) -> Result<(Listing, DirectoryRules), Failure> {
    add_gitignore(&directory, &mut rules).await?;
    Ok((Listing::new(directory).await?, rules))
}

/// Adds the `.gitignore` file of a directory to its rules, if they use it.
pub(super) async fn add_gitignore(
    directory: &CopyEndpoint,
    rules: &mut DirectoryRules,
) -> Result<(), Failure> {
    if rules.use_gitignore_files() {
        let content = directory.gitignore().await.map_err(|error| failed(directory, error))?;
        if let Some(content) = content {
            rules.add_gitignore(&content);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_never_names_anything_twice() {
        let is_after = |name: &str, last: &str| is_after(OsStr::new(name), OsStr::new(last));
        assert!(is_after("b", "a") && is_after("aa", "a") && is_after("a", "B"));
        assert!(!is_after("a", "a") && !is_after("a", "b") && !is_after("a", "aa"));
    }
}
