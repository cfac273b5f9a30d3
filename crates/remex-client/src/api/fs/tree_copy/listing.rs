//! Reads directories for a copy, one page at a time.

use std::{
    ffi::{OsStr, OsString},
    sync::Arc,
    vec,
};

use super::{CopyFailure, CopyObserver, CopyPath, CopyProblem, failed, is_directory, is_special, kind};
use crate::{
    Error,
    api::fs::{
        DirectoryEntry, Metadata, MetadataKind, Pages, entry_name,
        path::join,
        tree::{DirectoryRules, TreeRules},
    },
};

/// The entries of a directory, sorted by name, read one page at a time.
pub(super) struct Listing {
    pub(super) directory: CopyPath,
    pages: Pages,
    page: vec::IntoIter<DirectoryEntry>,
    /// An entry that was taken from the page but not returned yet.
    ahead: Option<(OsString, Metadata)>,
    /// The name that was read last.
    last: Option<OsString>,
}

impl Listing {
    /// Reads the first page.
    pub(super) async fn new(directory: CopyPath) -> Result<Self, CopyFailure> {
        let mut pages =
            directory.fs.read_dir_pages(&directory.path).map_err(|error| failed(&directory, error))?;
        let page = pages.next().await.map_err(|error| failed(&directory, error))?;
        Ok(Self { directory, pages, page: page.unwrap_or_default().into_iter(), ahead: None, last: None })
    }

    pub(super) async fn next(&mut self) -> Result<Option<(OsString, Metadata)>, CopyFailure> {
        if let Some(ahead) = self.ahead.take() {
            return Ok(Some(ahead));
        }
        loop {
            if let Some(entry) = self.page.next() {
                let name = entry_name(&self.directory.path, &entry)
                    .map_err(|error| failed(&self.directory, error))?;
                // A duplicate name could be a link first, and then be followed as a directory.
                if !is_after(&name, self.last.as_deref()) {
                    let problem = CopyProblem::Unordered { name: name.to_string_lossy().into_owned() };
                    return Err(CopyFailure { label: self.directory.label.clone(), problem });
                }
                self.last = Some(name.clone());
                let metadata = match entry.metadata {
                    Some(metadata) => *metadata,
                    // The entry vanished between the listing and this call.
                    None => match self.directory.fs.metadata(join(&self.directory.path, &name)).await {
                        Ok(metadata) => metadata,
                        Err(Error::Refused(_)) => continue,
                        Err(error) => return Err(failed(&self.directory, error)),
                    },
                };
                return Ok(Some((name, metadata)));
            }
            let page = self.pages.next().await.map_err(|error| failed(&self.directory, error))?;
            let Some(page) = page else { return Ok(None) };
            self.page = page.into_iter();
        }
    }

    /// Finds an entry, and passes those before it to `passed`; callers must ask in the order of names.
    pub(super) async fn find(
        &mut self,
        name: &OsString,
        mut passed: impl FnMut(OsString, &Metadata),
    ) -> Result<Option<Metadata>, CopyFailure> {
        while let Some((found, metadata)) = self.next().await? {
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

fn is_after(name: &OsStr, last: Option<&OsStr>) -> bool {
    last.is_none_or(|last| name > last)
}

/// Counts the files and bytes to copy. Errors are ignored: the copy itself reports them.
pub(super) async fn count<O: CopyObserver>(roots: Vec<(CopyPath, Metadata, TreeRules)>, observer: Arc<O>) {
    for (root, metadata, rules) in roots {
        let mut listings = Vec::new();
        if metadata.is_directory {
            listings.extend(open(root, DirectoryRules::root(rules)).await.ok());
        } else {
            observer.on_counted(1, metadata.size);
        }
        while let Some((listing, rules)) = listings.last_mut() {
            match listing.next().await {
                Ok(Some((name, metadata))) if rules.exclude(&name, is_directory(&metadata)) => {}
                Ok(Some((name, metadata))) if is_directory(&metadata) => {
                    let (directory, rules) = (listing.directory.join(&name), rules.enter(&name));
                    listings.extend(open(directory, rules).await.ok());
                }
                Ok(Some((_, metadata))) if is_special(&metadata) => {}
                Ok(Some((_, metadata))) => {
                    let is_file = kind(&metadata) == Some(MetadataKind::File);
                    observer.on_counted(1, if is_file { metadata.size } else { 0 });
                }
                Ok(None) | Err(_) => drop(listings.pop()),
            }
        }
    }
    observer.on_total_known();
}

async fn open(
    directory: CopyPath,
    mut rules: DirectoryRules,
) -> Result<(Listing, DirectoryRules), CopyFailure> {
    add_gitignore(&directory, &mut rules).await?;
    Ok((Listing::new(directory).await?, rules))
}

/// Adds the `.gitignore` file of a directory to its rules, if they use it.
pub(super) async fn add_gitignore(
    directory: &CopyPath,
    rules: &mut DirectoryRules,
) -> Result<(), CopyFailure> {
    if rules.use_gitignore_files() {
        let content = directory.fs.gitignore(&directory.path).await;
        if let Some(content) = content.map_err(|error| failed(directory, error))? {
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
        let is_after = |name: &str, last: &str| is_after(OsStr::new(name), Some(OsStr::new(last)));
        assert!(is_after("b", "a") && is_after("aa", "a") && is_after("a", "B"));
        assert!(!is_after("a", "a") && !is_after("a", "b") && !is_after("a", "aa"));
    }
}
