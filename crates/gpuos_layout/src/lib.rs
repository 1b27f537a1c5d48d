//! Where Slurm keeps its fields, read from Slurm's own headers.
//!
//! The plugins of gpuos know the structures of the releases in their table. For a release that
//! is newer than the table a site makes the rows itself, from the source that its Slurm was
//! built from: `gpuos layout SLURM-SOURCE-DIR -o layouts.tsv`. bindgen (with libclang opened at
//! run time) does the reading, in a program of its own, so that neither the plugins nor the
//! `gpuos` command carry a C front end.
//!
//! [`source`] finds the headers of a release, [`extract`] reads them.

pub mod extract;
pub mod source;

use std::fmt::Write as _;
use std::path::Path;

/// One field of one structure, as a line of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Name of the structure in the table, for example `job_record`.
    pub structure: String,
    /// Name of the field as in C.
    pub field: String,
    /// Offset in bytes.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
    /// C type as the table spells it, for example `char * *`.
    pub ctype: String,
}

/// The layout of one release.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Exact release, for example `24.11.5`.
    pub release: String,
    /// Fields, by structure and then by offset.
    pub rows: Vec<Row>,
}

impl Layout {
    /// The table as text, in the format of the built-in one: a row holds from the release
    /// `first` to `last`, here both the same.
    pub fn to_tsv(&self) -> String {
        let mut text = format!(
            "# Field layout of Slurm {}, LP64, read from its headers by gpuos-layout {}.\n\
             struct\tfield\toffset\tsize\tctype\tfirst\tlast\n",
            self.release,
            env!("CARGO_PKG_VERSION")
        );
        for row in &self.rows {
            let Row {
                structure,
                field,
                offset,
                size,
                ctype,
            } = row;
            let release = &self.release;
            let _ = writeln!(
                text,
                "{structure}\t{field}\t{offset}\t{size}\t{ctype}\t{release}\t{release}"
            );
        }
        text
    }
}

/// Reads the layout of the Slurm source in `dir`. `release` replaces what the source says
/// about itself. Errors are sentences: what is missing and what to do.
pub fn read(dir: &Path, release: Option<&str>) -> anyhow::Result<Layout> {
    let source = source::Source::open(dir, release)?;
    let rust = source.bindings()?;
    let rows = extract::rows(&rust)?;
    Ok(Layout {
        release: source.release,
        rows,
    })
}
