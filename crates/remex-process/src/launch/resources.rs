//! Stacks and descriptor numbers for creating children, reserved before the first child.

use std::io;

use crate::{base::slots::StdioSlots, launch::clone::Stack};

/// The resources with which one thread creates children.
pub(crate) struct ChildResources {
    pub(crate) stack: Stack,
    /// The stack of the intermediate process that creates a confined child.
    pub(crate) between: Option<Stack>,
    pub(crate) slots: StdioSlots,
}

impl ChildResources {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { stack: Stack::new()?, between: None, slots: StdioSlots::new()? })
    }
}
