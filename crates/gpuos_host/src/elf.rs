//! What a plugin file is: an ELF shared object of this machine, what it exports and what it needs. It is read, never
//! loaded: a plugin that would end slurmctld must not end who looks at it.

use std::collections::{BTreeMap, BTreeSet};

use object::elf::{DT_NEEDED, FileHeader64};
use object::endian::Endianness;
use object::read::elf::{Dyn as _, ElfFile, FileHeader as _, ProgramHeader as _};
use object::{Architecture, Object, ObjectKind, ObjectSection as _, ObjectSymbol};

/// Stands in every plugin before the release of gpuos that it was built from.
const MARK: &[u8] = b"@(#)gpuos ";

/// What matters about a plugin file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plugin {
    /// Architecture, for example `x86_64`.
    pub arch: String,
    /// Names of the symbols that it exports.
    pub exports: BTreeSet<String>,
    /// Names of the libraries that it needs.
    pub needs: Vec<String>,
    /// Versions of symbols that it needs, by library: `libc.so.6` with `GLIBC_2.34`.
    pub versions: BTreeMap<String, BTreeSet<String>>,
    /// Versions of symbols that it has itself, as libraries do.
    pub defines: BTreeSet<String>,
    /// The Slurm that it is for (`plugin_version`), as three numbers; `None`: it finds that itself, or is no plugin.
    pub slurm: Option<[u32; 3]>,
    /// The gpuos that it is of.
    pub gpuos: Option<String>,
}

/// What [`read`] adds where a file is cut off behind all that the loader maps: it may load all the same.
pub const MAY_LOAD: &str = ", though what the loader maps is there";

type File<'a> = ElfFile<'a, FileHeader64<Endianness>>;

/// Reads a shared object. Error: a clause that says what the file is instead.
pub fn read(bytes: &[u8]) -> Result<Plugin, String> {
    if bytes.is_empty() {
        return Err("is empty".into());
    }
    if !bytes.starts_with(b"\x7fELF") {
        return Err("is not an ELF file".into());
    }
    if let Some(clause) = cut_off(bytes) {
        return Err(clause);
    }
    let unreadable = |e: object::Error| format!("is not a 64-bit ELF file that can be read ({e})");
    let file: File<'_> = ElfFile::parse(bytes).map_err(unreadable)?;
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
    let mut plugin = Plugin {
        arch,
        exports,
        slurm: slurm(&file),
        gpuos: gpuos(bytes),
        ..Plugin::default()
    };
    needs(&file, bytes, &mut plugin).map_err(unreadable)?;
    Ok(plugin)
}

/// Whether the file ends before what its headers tell of, as one does whose copying was broken off.
fn cut_off(bytes: &[u8]) -> Option<String> {
    let header = match FileHeader64::<Endianness>::parse(bytes) {
        Ok(header) => header,
        Err(_) if bytes.len() < 64 => {
            return Some(format!(
                "is cut off: it has {} bytes, less than the header of an ELF file",
                bytes.len()
            ));
        }
        Err(_) => return None,
    };
    let endian = header.endian().ok()?;
    let sections = u64::from(header.e_shnum(endian)) * u64::from(header.e_shentsize(endian));
    let whole = header.e_shoff(endian).saturating_add(sections);
    let programs = u64::from(header.e_phnum(endian)) * u64::from(header.e_phentsize(endian));
    let mut end = header.e_phoff(endian).saturating_add(programs);
    for segment in header.program_headers(endian, bytes).unwrap_or_default() {
        let (start, length) = segment.file_range(endian);
        end = end.max(start.saturating_add(length));
    }
    let has = bytes.len() as u64;
    let told = end.max(whole);
    let loads = match end > has {
        true => "",
        false => MAY_LOAD,
    };
    (told > has)
        .then(|| format!("is cut off: it has {has} bytes, and its headers tell of {told}{loads}"))
}

/// The libraries and the versions of their symbols, and those of its own.
fn needs(file: &File<'_>, bytes: &[u8], plugin: &mut Plugin) -> object::Result<()> {
    let endian = file.endian();
    let sections = file.elf_section_table();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if let Some((entries, link)) = sections.dynamic(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        for entry in entries {
            if entry.tag32(endian) == Some(DT_NEEDED) {
                plugin.needs.push(text(entry.string(endian, strings)?));
            }
        }
    }
    if let Some((mut all, link)) = sections.gnu_verneed(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        while let Some((library, mut versions)) = all.next()? {
            let own = plugin
                .versions
                .entry(text(library.file(endian, strings)?))
                .or_default();
            while let Some(version) = versions.next()? {
                own.insert(text(version.name(endian, strings)?));
            }
        }
    }
    if let Some((mut all, link)) = sections.gnu_verdef(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        while let Some((_, mut names)) = all.next()? {
            if let Some(name) = names.next()? {
                plugin.defines.insert(text(name.name(endian, strings)?));
            }
        }
    }
    Ok(())
}

/// `plugin_version` where the file has it: stock plugins do, those of gpuos have 0 there until they are loaded.
fn slurm(file: &File<'_>) -> Option<[u32; 3]> {
    let symbol = file
        .dynamic_symbols()
        .find(|symbol| symbol.name() == Ok("plugin_version") && symbol.is_definition())?;
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    let data = section.data_range(symbol.address(), 4).ok()??;
    let number = u32::from_ne_bytes(data.try_into().ok()?);
    (number != 0).then_some([number >> 16, number >> 8 & 0xff, number & 0xff])
}

fn gpuos(bytes: &[u8]) -> Option<String> {
    let at = bytes
        .windows(MARK.len())
        .position(|window| window == MARK)?
        + MARK.len();
    let rest = &bytes[at..bytes.len().min(at + 64)];
    let end = rest.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&rest[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_plugins_say_what_they_are() {
        assert_eq!(read(b"").unwrap_err(), "is empty");
        assert_eq!(read(b"#!/bin/sh\n").unwrap_err(), "is not an ELF file");
        let short = read(b"\x7fELF\x02\x01").unwrap_err();
        assert!(short.starts_with("is cut off: it has 6 bytes"), "{short}");
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        // Position-independent programs are shared objects to ELF; they export no plugin.
        if let Ok(plugin) = read(&own) {
            assert_eq!(plugin.arch, std::env::consts::ARCH);
            assert!(!plugin.exports.contains("plugin_type"));
            assert!(plugin.needs.iter().any(|name| name.starts_with("libc.so")));
            let glibc = &plugin.versions["libc.so.6"];
            assert!(glibc.iter().all(|name| name.starts_with("GLIBC_")));
        }
        for length in [10, 63, 64, 500, own.len() / 2, own.len() - 1] {
            let told = read(&own[..length]).unwrap_err();
            assert!(told.starts_with("is cut off: it has"), "{length}: {told}");
        }
    }

    #[test]
    fn libraries_tell_the_versions_that_they_have() {
        let found = ["/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64"]
            .iter()
            .find_map(|dir| std::fs::read(format!("{dir}/libc.so.6")).ok());
        let libc = read(&found.expect("a libc")).unwrap();
        assert!(libc.defines.iter().any(|name| name == "GLIBC_2.17"));
        assert_eq!((libc.slurm, libc.gpuos), (None, None));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut bytes = own[..own.len().min(1 << 16)].to_vec();
        bytes.extend(&own[own.len().saturating_sub(1 << 16)..]);
        let mut seed = 7_u64;
        for _ in 0..300 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 33) as usize % 4096;
            bytes[at] = seed as u8;
            let _ = read(&bytes);
        }
    }
}
