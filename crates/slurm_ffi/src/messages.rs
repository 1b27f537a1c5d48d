//! What all plugins write into the logs of Slurm's daemons.

gpuos_model::messages! {
    /// A mistake in gpuos. The daemon goes on, and the plugin does nothing more in it: jobs are placed as by stock Slurm.
    pub fn internal_error(symbol, what, place) =
        "internal error in {symbol} ({what} at {place}); gpuos now passes every call through, as if it were not \
         configured, until this daemon restarts. Please report this line",
        "Report it; a restart of the daemon has gpuos work again.";
    /// The layout table was not held against objects of Slurm's own: jobs are looked at all the same.
    pub fn no_probe_objects(why) = "no probe objects are made: {why}",
        "Nothing is to be done.";
    /// A reason of passing through: records are held against the layout table by reads that cannot end the daemon, and the
    /// kernel allows none of them.
    pub fn memory_unreadable(direct, pipe) =
        "this process may not read its own memory safely (process_vm_readv: {direct}; a pipe: {pipe}). A seccomp filter \
         (SystemCallFilter= of its service, or of a container's runtime) or user-mode emulation forbids it: allow \
         process_vm_readv, or pipe2, write and read, and restart it",
        "Do what it says. `systemctl show -p SystemCallFilter slurmctld` shows the filter of a service, and `grep Seccomp \
         /proc/PID/status` whether a process has one (2).";
    /// A reason of passing through: nobody has written down how this release of Slurm lays out its records.
    pub fn unknown_release(release, file) =
        "Slurm {release} is not in the layout table of this gpuos; run `gpuos layout SLURM-SOURCE-DIR -o {file}` on the \
         source of Slurm {release} and put the file beside slurm.conf, or install a newer gpuos",
        "Do what it says, then restart slurmctld.";
    /// A reason of passing through: the site's own table, gpuos-layouts.tsv, cannot be used.
    pub fn site_table_unusable(path, why) =
        "{path}: {why}; write it with `gpuos layout SLURM-SOURCE-DIR`, or remove it and restart slurmctld",
        "Do what it says.";
    /// A reason of passing through: the site's own table lacks a field that gpuos needs.
    pub fn no_offset(structure, field, release) =
        "the layout table has no offset of {structure}.{field} for Slurm {release}",
        "Write gpuos-layouts.tsv anew with `gpuos layout` of this release of gpuos, then restart slurmctld.";
    /// A reason of passing through: rows of the site's own table contradict each other.
    pub fn rows_misfit(structure, release, why) =
        "the rows of {structure} for Slurm {release} are not those of a structure: {why}",
        "Write gpuos-layouts.tsv anew with `gpuos layout`, and not by hand, then restart slurmctld.";
}

#[cfg(test)]
#[path = "../../../tests/reference/messages.rs"]
mod page;

#[test]
fn the_page_in_the_reference_has_every_message() {
    page::hold(&[("all plugins", ROWS)], &["Message::of_table"]);
}
