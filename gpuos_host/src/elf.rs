//! What a plugin file is: an ELF shared object of this machine, and what it exports.

use std::collections::BTreeSet;

use object::elf::FileHeader64;
use object::endian::Endianness;
use object::read::elf::ElfFile;
use object::{Architecture, Object, ObjectKind, ObjectSymbol};

/// What matters about a plugin file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plugin {
    /// Architecture, for example `x86_64`.
    pub arch: String,
    /// Names of the symbols that it exports.
    pub exports: BTreeSet<String>,
}

/// Reads a shared object. Error: a clause that says what the file is instead.
pub fn read(bytes: &[u8]) -> Result<Plugin, String> {
    if !bytes.starts_with(b"\x7fELF") {
        return Err("is not an ELF file".into());
    }
    let file: ElfFile<'_, FileHeader64<Endianness>> = ElfFile::parse(bytes)
        .map_err(|e| format!("is not a 64-bit ELF file that can be read ({e})"))?;
    if file.kind() != ObjectKind::Dynamic {
        return Err("is an ELF file, but not a shared object".into());
    }
    let arch = match file.architecture() {
        Architecture::X86_64 => "x86_64".to_string(),
        Architecture::Aarch64 => "aarch64".to_string(),
        other => format!("{other:?}").to_lowercase(),
    };
    let exports = file
        .dynamic_symbols()
        .filter(|s| s.is_definition() && s.is_global())
        .filter_map(|s| s.name().ok().map(str::to_string))
        .collect();
    Ok(Plugin { arch, exports })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_plugins_say_what_they_are() {
        assert_eq!(read(b"#!/bin/sh\n").unwrap_err(), "is not an ELF file");
        let short = read(b"\x7fELF\x02\x01").unwrap_err();
        assert!(short.starts_with("is not a 64-bit ELF file"), "{short}");
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        // Position-independent programs are shared objects to ELF; they export no plugin.
        if let Ok(plugin) = read(&own) {
            assert_eq!(plugin.arch, std::env::consts::ARCH);
            assert!(!plugin.exports.contains("plugin_type"));
        }
    }
}
