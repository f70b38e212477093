//! Backends linked into the program: the same table, judged by the same rules, without a library.

use quota_plugin_abi::quota_plugin;

use crate::load::LoadError;
use crate::plugin::{Description, Plugin};

impl Plugin {
    /// A backend that is linked in.
    ///
    /// # Errors
    /// The table breaks a rule of the ABI.
    pub fn builtin(table: &'static quota_plugin) -> Result<Self, LoadError> {
        let description = Description::of_builtin(table)
            .map_err(|reason| LoadError::Refused { file: None, reason })?;
        Ok(Self::linked_in(description))
    }
}
