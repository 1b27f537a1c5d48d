//! What select/gpuos writes into slurmctld's log at its default level.

gpuos_model::messages! {
    /// gpuos places jobs from now on. `gpuos doctor` looks for this line.
    pub fn steering(release) = "Slurm {release}: steering cons_tres",
        "Nothing is to be done.";
    /// `steer = false` in gpuos.toml: gpuos hands every call on to cons_tres.
    pub fn steering_is_off(release) = "Slurm {release}: passing through to cons_tres, see gpuos.toml",
        "Take `steer = false` out of `[slurm]` in gpuos.toml, and run `scontrol reconfigure`, where gpuos is to place jobs.";
    /// gpuos places no jobs, for the reason that follows; these of the next rows are the usual ones. Jobs go on starting.
    pub fn passing_through(why) =
        "passing through to cons_tres, jobs are scheduled as by stock Slurm: {why}",
        "Mend what the reason names, then restart slurmctld; `gpuos doctor` says it again once it is mended.";
    /// Said once, before `steering`: records of Slurm are checked in the second way, which takes a few microseconds
    /// longer for each read. Jobs are placed all the same.
    pub fn read_through_a_pipe(why) = "records are checked by way of a pipe (process_vm_readv: {why})",
        "Nothing is to be done.";
    /// A reason of passing through: the build of slurmctld lacks something that gpuos calls.
    pub fn not_exported(release, symbol) = "Slurm {release} does not export {symbol}",
        "Install a Slurm that is built as its authors ship it.";
    /// A reason of passing through: the same of the table of nodes.
    pub fn no_node_table() = "Slurm does not export its node table",
        "Install a Slurm that is built as its authors ship it.";
    /// A reason of passing through, at the start: slurmctld's configuration does not lie where the table has it.
    pub fn configuration_misfits(why) = "the layout table does not fit this slurmctld ({why})",
        "Write a table from the source of this Slurm with `gpuos layout`, or install a newer gpuos.";
    /// A reason of passing through: objects that Slurm's own functions made do not lie as in the table. It holds until
    /// slurmctld restarts.
    pub fn objects_misfit(why) =
        "the layout table does not fit this slurmctld ({why}); run `gpuos doctor`, and report this line with the exact \
         Slurm package",
        "Report it. A table from the source of this Slurm with `gpuos layout` helps until then.";
    /// A reason of passing through: a job or the nodes do not lie as in the table. The next jobs decide anew.
    pub fn records_misfit(why) =
        "the layout table does not fit this slurmctld ({why}); run `gpuos doctor`, and report this line with the exact \
         Slurm package. Later jobs are looked at again",
        "Report it.";
    /// One job is odd, and stock Slurm places it. gpuos goes on.
    pub fn job_not_understood(job, why) =
        "job {job} is placed by cons_tres, for it is not understood ({why}); the next job with GPUs is looked at",
        "Nothing is to be done for one job; report the line if it comes for many.";
    /// slurmctld cannot load gpuos: the plugin that it wraps is not there.
    pub fn no_cons_tres() =
        "select_cons_tres.so is neither beside this plugin nor in Slurm's plugin folder; put Slurm's own folder into \
         PluginDir as well",
        "Set PluginDir to the folder of gpuos and that of Slurm, with a colon between them.";
    /// slurmctld cannot load gpuos: the plugin that it wraps does not load.
    pub fn cannot_load(path, why) = "cannot load {path}: {why}; is it of the same Slurm as this program?",
        "Remove what is of another Slurm from PluginDir.";
    /// Job state on disk carries another number than with stock Slurm, which then cannot read it.
    pub fn own_id(why) =
        "the id of cons_tres cannot be changed in memory: {why}; gpuos runs under its own id 110. Before going back to \
         select/cons_tres let all jobs end",
        "Let jobs end before SelectType goes back to select/cons_tres.";

    /// There is no gpuos.toml, which is fine.
    pub fn no_gpuos_toml(path) = "there is no {path}: every key has its default",
        "Nothing is to be done.";
    /// This text holds from now on. `gpuos doctor` compares it with the file.
    pub fn file_is_read(path, sum) = "{path} is read, checksum {sum}",
        "Nothing is to be done.";
    /// A mistake in gpuos.toml, with its line and column. The next line says what follows from it.
    pub fn mistake_in_gpuos_toml(place_and_mistake) = "{place_and_mistake}",
        "Mend the line; `gpuos doctor` checks the file before slurmctld reads it again.";
    /// gpuos.toml has a mistake, so what its administrator wants is not known.
    pub fn gpuos_toml_is_broken() =
        "passing through to cons_tres, and no job gets slices of GPUs, until gpuos.toml is mended and slurmctld \
         reconfigured",
        "Mend what the line before names, then `scontrol reconfigure`.";
    /// slurmctld's user may not read gpuos.toml, or the disk fails.
    pub fn cannot_read(path, why) = "cannot read {path}: {why}; passing through to cons_tres",
        "Let SlurmUser read it, then `scontrol reconfigure`.";
    /// The topology file that Slurm goes by has a mistake, or cannot be read. Jobs on one node are still placed by its links.
    pub fn no_fabric(place_and_mistake) = "{place_and_mistake}; Slurm alone places jobs on several nodes, for which the fabric would count",
        "Mend the file, then `scontrol reconfigure`.";
    /// A node type or the fabric in gpuos.toml does not go with these nodes.
    pub fn model_from_slurm(why) = "{why}; node types and fabric are taken from Slurm alone",
        "Mend the key that is named, then `scontrol reconfigure`.";
    /// A rule names a level that the fabric does not have: the rule holds for no job.
    pub fn unknown_level(place_and_mistake) = "{place_and_mistake}",
        "Name one of the levels that `gpuos topo` lists.";
    /// Rules by QOS need names that only slurmdbd knows.
    pub fn no_qos(why) = "[[policy.rule]] with qos = in gpuos.toml holds for no job: {why}",
        "Run slurmdbd with AccountingStorageType=accounting_storage/slurmdbd, or write rules by partition.";

    /// Broken GPUs are not kept from jobs, for the table lacks where their marks are.
    pub fn no_extra(release) =
        "the layout table has no offset of node_record.extra for Slurm {release}: GPUs that are out of service get jobs",
        "Add that row to gpuos-layouts.tsv (`gpuos layout` prints it), then restart slurmctld.";
    /// The part of a node's Extra that gpuosd writes is damaged; the words that are whole count.
    pub fn extra_is_odd(node, why) = "{node}: {why}",
        "See who else writes Extra (`scontrol show node`); gpuosd writes its part anew at the next change.";
    /// gpuosd on that node is newer than this plugin.
    pub fn extra_has_unknown_words(node, words) =
        "{node}: gpuos's part of Extra has words that this release does not know; the others count: {words}",
        "Install one release of gpuos on all hosts.";
    /// The node's Extra cannot be read where the table has it.
    pub fn extra_misfits(node, why) =
        "{node}: {why}; GPUs that are out of service get jobs until slurmctld restarts; report this line with the exact \
         Slurm package",
        "Report it, and restart slurmctld.";
    /// What gpuosd says of its GPUs has changed.
    pub fn service_changed(node, out, degraded, pool_out) =
        "{node}: GPUs out of service: {out}; degraded: {degraded}; of its pool out of service, by NVML's index: {pool_out}",
        "Look with `gpuos health` on the node why.";
    /// Releases before 23.11 give a node's GPUs wrongly until it has registered.
    pub fn not_registered(node) =
        "{node} has not registered since slurmctld started: no GPU job starts there until it has",
        "See that slurmd runs there, if the line is older than a minute.";

    /// The geometry of a board is of no use.
    pub fn no_pool(why) = "[mig] in gpuos.toml: {why}; jobs with slices get what cons_tres gives them",
        "Mend the table, then `scontrol reconfigure`.";
    /// More slices than gpuos can count on a node.
    pub fn pool_is_too_large(node, gpus, board, most) =
        "{node}: {gpus} GPUs {board} in one [[mig.pool]] have more than the {most} slices that gpuos steers on a node; no \
         job gets slices there until the pool has fewer GPUs",
        "Put fewer GPUs of that node into the pool.";
    /// gres.conf and gpuos.toml count the node's slices differently.
    pub fn slices_differ(node, has, makes) =
        "{node}: GRES gpuos has {has} slices with File= and Type= in gres.conf, and [[mig.pool]] in gpuos.toml makes it \
         {makes}; no job gets slices there until both say the same (gpuos discover prints them)",
        "Write what `gpuos discover` prints on that node, restart slurmd there and slurmctld.";
    /// cons_tres gave other slices than it was offered; the job waits.
    pub fn other_slices_taken(job, taken, offered, node) =
        "job {job}: cons_tres took slices {taken} and not {offered} of node {node}; its instances cannot be made there. \
         Report this line with the exact Slurm package",
        "Report it.";
    /// cons_tres took a place that gpuos offered and would have given the job too few GPUs there, as links and sockets in gres.conf
    /// can have it. The start was taken back, and the job is placed as by stock Slurm. A job that requires a level is offered the next
    /// place that has it, and waits where there is none.
    pub fn too_few_offered(job, given, asked, place) =
        "job {job}: cons_tres selected {given} GPUs of the {asked} asked for {place}; taken back, and the job is placed \
         anew, by cons_tres alone unless it requires a level",
        "Nothing is to be done. Where it comes for many jobs, look at `Links=` and `Cores=` of that node in gres.conf.";
    /// The same beside GPUs that are out of service or MIG-switchable, so that there is no other place: the job waits.
    pub fn too_few_left(job, given, asked, place) =
        "job {job}: beside GPUs that are not for it cons_tres selected {given} of the {asked} asked for {place}; it waits",
        "Repair the GPUs that `gpuos health` names, or look at `Links=` and `Cores=` of that node in gres.conf.";
    /// gpuos.toml is broken, and has what says how these GPUs are divided.
    pub fn divided_is_unknown(node) =
        "{node}: without a sound gpuos.toml nobody knows which of its GPUs are divided and which are MIG-switchable. It gets no \
         job with slices, and no job with GPUs while somebody has slices there, until there is one and slurmctld is \
         reconfigured",
        "Mend gpuos.toml, then `scontrol reconfigure`.";
    /// gres.conf and gpuos.toml do not name the same MIG-switchable GPUs.
    pub fn not_switched(node, slices) =
        "{node}: its GPUs are not switched: Slurm has no GRES gpuos there with {slices} slices and no GRES gpu with all \
         MIG-switchable GPUs, both with Type= and File= in gres.conf and at most 64 of each. It gets no job with slices, \
         and no job with GPUs while somebody has slices there, until gres.conf and [[mig.pool]] in gpuos.toml say the same \
         (gpuos discover prints them)",
        "Write what `gpuos discover` prints on that node, restart slurmd there and slurmctld.";

    /// Decisions leave no recording, for which `gpuos why` and `gpuos replay` look.
    pub fn not_recorded(path, why) = "decisions are not recorded: {path}: {why}; jobs are placed all the same",
        "Make room in /dev/shm, or remove what stands in the way there, then `scontrol reconfigure`.";
    /// Somebody cut the recording short. No more is recorded.
    pub fn recording_was_cut() =
        "the file of recorded decisions in /dev/shm was cut short by somebody else; none are recorded until the next \
         `scontrol reconfigure`; jobs are placed all the same",
        "Find who wrote there, then `scontrol reconfigure`.";
    /// What was recorded of earlier jobs is used again.
    pub fn history_is_remembered(names) = "what earlier runs taught is remembered: {names} job names",
        "Nothing is to be done.";
    /// Enough jobs have come to tell what sizes are usual. Places are chosen for those.
    pub fn mix_is_learned(jobs, sizes) =
        "nodes are chosen by the mix of {jobs} jobs from now on, by GPUs on a node: {sizes}",
        "Nothing is to be done.";
    /// The note of a decision, as `log = "decisions"` has it.
    pub fn decided(job, note) = "job {job}: {note}",
        "Nothing is to be done; `log = \"quiet\"` in gpuos.toml ends these lines.";
    /// The thread that keeps reasons in squeue has ended by a mistake in gpuos.
    pub fn keeper_failed() =
        "internal error in the thread that keeps reasons in sight; until slurmctld restarts, squeue shows them only from \
         the next job's test on. Please report this line",
        "Report it.";
}

#[cfg(test)]
#[path = "../../tests/reference/messages.rs"]
mod page;

#[test]
fn the_page_in_the_reference_has_every_message() {
    page::hold(&[("select/gpuos", ROWS)], &["Message::of_table"]);
}
