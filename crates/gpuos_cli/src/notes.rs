//! What the joined records of a site lack.

use gpuos_host::slurm::site::Site;

/// What is missed, one a line.
pub fn notes(site: &Site) -> String {
    site.notes
        .iter()
        .map(|note| format!("note: {note}\n"))
        .collect()
}
