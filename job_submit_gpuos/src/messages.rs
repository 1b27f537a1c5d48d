//! What job_submit/gpuos says to those who submit or change jobs, and in slurmctld's log.

pub mod in_log {
    //! In slurmctld's log.

    gpuos_model::messages! {
        /// Options are not checked at submission, for the reason that follows; gpuos does not place jobs either, or says
        /// why in a line of its own.
        pub fn unchecked(why) = "jobs are accepted without a check of their gpuos options: {why}",
            "Mend what the reason names, then restart slurmctld or `scontrol reconfigure`.";
        /// What Slurm handed over does not lie as in the layout table. Said once.
        pub fn description_misfits() =
            "a job description does not look as in the layout table; jobs that look so are accepted unchecked",
            "Report it with the exact Slurm package.";
    }
}

pub mod refused {
    //! To whoever submits or changes a job, which is not taken.

    gpuos_config::refusals! {
        /// The fabric has no such level.
        pub fn no_level(level, levels) on "--gpuos-topology" = "this cluster has no level '{level}'", write "one of {levels}";
        /// The cluster is large enough for the job, and none of its domains is.
        pub fn no_domain_is_large_enough(why, level) on "--gpuos-topology" =
            "{why}", write "--gpuos-topology={level} to prefer it only, or ask for less";
        /// The same of `--gpuos-exclusive`.
        pub fn no_level_to_have(level, levels) on "--gpuos-exclusive" =
            "this cluster has no level '{level}'", write "one of {levels}";
        /// The same of a place that `affinity:` or `anti-affinity:` names.
        pub fn no_level_to_be_near(level, levels) on "--gpuos-placement" =
            "this cluster has no level '{level}'", write "class, power, switch or {levels}";
        /// gpuos.toml describes no such power domain.
        pub fn no_power_domain(name, accepted) on "--gpuos-placement" =
            "this cluster has no power domain '{name}'", write "{accepted}";
        /// gpuos.toml describes classes, and not this one.
        pub fn no_class(classes) on "--gpuos-class" = "this cluster has no such class", write "one of {classes}";
        /// `--gpuos=off` beside an option that only gpuos could honour.
        pub fn contradicts(other, name) on "--gpuos" =
            "it contradicts {other}", write "one of the two (--{name}=off undoes the other)";
        /// The product of the sizes is not the number of GPUs, or the groups do not fill the nodes.
        pub fn shape_misfits(why) on "--gpuos-shape" =
            "{why}", write "sizes whose product is the number of GPUs, or ask for as many GPUs";
        /// No GPU that the job could get draws as much.
        pub fn too_many_watts(kind, most) on "--gpuos-power" =
            "no {kind} of this cluster takes more than {most} W", write "at most {most}W, or a share such as 80%";
        /// A `[[forbid]]` of gpuos.toml holds for the job's partition, account or QOS.
        pub fn forbidden(option, clause, whom) on option = "{clause}", write "no {option}, or ask {whom}";
        /// gpuos has to turn the option into GRES, and cannot: the job would start without them.
        pub fn nothing_given(option, why) on option = "{why}", write "no {option}, or ask those who run the cluster";
        /// An update names other GRES, and Slurm would drop those that stand for the option.
        pub fn gres_stay(option) on option =
            "the GRES that it stands for cannot be changed", write "what it needs at submission: cancel it and submit it anew";
        /// The job names slices itself, too.
        pub fn slices_twice() on "--gpuos-mig" =
            "the job asks for GRES gpuos as well, which --gpuos-mig stands for", write "one of the two";
        /// Whole nodes and a part of their slices.
        pub fn slices_of_whole_nodes() on "--gpuos-mig" =
            "--exclusive takes all slices of a node, and not those of this request", write "one of the two";
        /// Slices for each task, and Slurm may spread the tasks at will.
        pub fn tasks_unknown() on "--gpuos-mig" =
            "how many tasks a node gets is not said", write "--ntasks-per-node=N with it, or -N1 with --ntasks=N";
        /// A part of a GPU beside something that is about whole GPUs, or about all on it.
        pub fn share_goes_not_with(beside, why, undo) on "--gpuos-share" =
            "it does not go with {beside}, {why}", write "one of the two ({undo})";
        /// slurm.conf and gres.conf have no GRES shard.
        pub fn no_shards() on "--gpuos-share" =
            "no GPU of this cluster has shards",
            write "--gres=gpu:1 for a whole GPU, or have those who run the cluster write GresTypes=gpu,shard and, for 4 \
                   shards on each of 8 GPUs, Gres=gpu:8,shard:32 into slurm.conf and Name=shard Count=32 into gres.conf";
        /// More than all of one GPU.
        pub fn too_many_shards(most) on "--gpuos-share" =
            "a GPU of this cluster has {most} shards at most", write "timeslice:{most} or less";
        /// `[memory]` of gpuos.toml has no `turns`.
        pub fn turns_are_off() on "--gpuos-share" =
            "on this site jobs do not share the memory of a GPU in turns",
            write "no mem=, and share the GPU with what memory others leave; an administrator can allow it with [memory] turns = 2 in gpuos.toml";
        /// On sites with `turns` all that share a GPU have to say how much of its memory they need: others could leave them none.
        pub fn share_without_memory() on "--gpuos-share" =
            "on this site jobs share a GPU in turns with its memory, and how much of it this one needs is not said",
            write "timeslice,mem=SIZE, such as timeslice,mem=60G";
        /// The same of a job that names GRES `shard` or `mps` itself.
        pub fn shards_by_name() on "--gres" =
            "on this site jobs share a GPU in turns with its memory, and how much of it this one needs is not said",
            write "--gpuos-share=timeslice,mem=SIZE in its place";
        /// slurm.conf has MaxNodeCount.
        pub fn turns_of_any_node() on "--gpuos-share" =
            "this cluster may have nodes that slurm.conf does not name, and what their GPUs have is not known",
            write "--gpus=1 for a whole GPU, or ask those who run the cluster";
        /// The job could get a GPU of which gpuos.toml does not say how much memory it has.
        pub fn turns_of_gpu_unknown(node) on "--gpuos-share" =
            "how much memory the GPUs of node {node} have is not said",
            write "--gpus=1 for a whole GPU; an administrator says it with [[nodes]] or a [[node-type]] in gpuos.toml";
        /// More than the smallest GPU with shards has for one job.
        pub fn turns_are_too_large(gpu, most) on "--gpuos-share" =
            "a GPU that the job could get has {gpu} MiB, of which programs' contexts take some",
            write "mem={most}M or less, or a whole GPU with --gpus=1 --gpuos-mem=SIZE where the site allows more than a GPU has";
        /// Two jobs could be given the same host memory.
        pub fn turns_are_not_counted() on "--gpuos-share" =
            "Slurm does not count memory on this cluster, so that there may be no place in the host's for what is parked",
            write "--gpus=1 for a whole GPU; an administrator has it counted with SelectTypeParameters=CR_Core_Memory in slurm.conf";
        /// What is parked and what the program needs are together more than any node with shards has.
        pub fn turns_misfit(needed, largest) on "--gpuos-share" =
            "with a place for what is parked the job needs {needed} MiB of the host's memory, and no node with shards has more than {largest} MiB",
            write "a smaller mem=, or a smaller --mem";
        /// The job says nothing of memory, wants all of a node's, or counts it in another way than by the node.
        pub fn turns_need_memory() on "--gpuos-share" =
            "how much of the host's memory the program itself needs on a node is not said",
            write "--mem=SIZE with it: a place for what is parked is added to that, and jobs that share a GPU cannot have all of a node's";
        /// An update would take from the job the place for what is parked.
        pub fn turns_stay(mib) on "--gpuos-share" =
            "{mib} MiB of the host's memory are a place for what is parked while others have the GPU, and the change would leave less",
            write "--mem with as much and what the program needs, or cancel it and submit it anew";
        /// `[memory]` of gpuos.toml has no `nvme-gres`.
        pub fn nvme_is_not_counted() on "--gpuos-share" =
            "this site gives jobs no NVMe for what is parked",
            write "no park=, and --mem=SIZE with it: what is parked lies in the host's memory then; an administrator can have it with nvme-gres in \
                   [memory] of gpuos.toml and that GRES in slurm.conf";
        /// More than any node with shards has of that GRES.
        pub fn nvme_misfit(needed, gres, largest) on "--gpuos-share" =
            "what is parked needs {needed} GiB of NVMe, and of GRES {gres} no node with shards has more than {largest} of which gpuosd lends them",
            write "a smaller mem=, or no park= and --mem=SIZE: what is parked lies in the host's memory then";
        /// `[checkpoint]` of gpuos.toml does not turn checkpoints on.
        pub fn no_checkpoints() on "--gpuos-checkpoint" =
            "this site makes no checkpoints",
            write "no --gpuos-checkpoint; an administrator can turn them on with [checkpoint] enabled = true in gpuos.toml";
        /// From what a job begins that makes no checkpoints.
        pub fn restart_without() on "--gpuos-restart" =
            "a job without --gpuos-checkpoint has no checkpoints", write "--gpuos-checkpoint=TIME with it, or leave it out";
        /// `[checkpoint]` names no folder to which checkpoints are drained.
        pub fn no_shared() on "--gpuos-checkpoint" =
            "this site drains no checkpoints to a parallel file system",
            write "no l3=; an administrator can have it done with shared = \"/PATH\" in [checkpoint] of gpuos.toml";
        /// The folder in memory is of the job's own memory, and larger than that.
        pub fn memory_misfits(mib) on "--gpuos-checkpoint" =
            "l0= is part of the memory that the job has on each node, and --mem is {mib} MiB",
            write "--mem=SIZE for the program and l0= together, or a smaller l0=";
        /// The scheme is for more nodes than the job asks for at least.
        pub fn scheme_needs_nodes(scheme, least, may, range, other) on "--gpuos-checkpoint" =
            "l2={scheme} needs at least {least} nodes, and {may}", write "{range}, or l2={other}";
        /// The program's nodes and the spares together are more than there are.
        pub fn spares_beyond_cluster(all, nodes, have) on "--gpuos-spares" =
            "with the {nodes} nodes of the program the job needs {all}, and this cluster has {have}",
            write "fewer of both: {have} together";
        /// Spares without checkpoints.
        pub fn spares_without_checkpoints() on "--gpuos-spares" =
            "a program that loses a node goes on from a checkpoint, and the job makes none",
            write "--gpuos-checkpoint with it, such as --gpuos-checkpoint=10m";
        /// Ranks are ordered over all nodes of a job, of which the program has only some.
        pub fn spares_with_shape(other) on "--gpuos-spares" =
            "it does not go with {other}, which orders the ranks on all nodes of the job", write "one of the two";
        /// The job says neither nodes nor a range of them.
        pub fn spares_without_nodes() on "--gpuos-spares" =
            "how many nodes the program needs is not said", write "--nodes=N with it";
        /// GPUs for the job as a whole: what the program has of them is not known.
        pub fn spares_of_job_gpus(gpus) on "--gpuos-spares" =
            "{gpus} is for all nodes of the job together", write "--gpus-per-node=N in place of --gpus";
        /// Tasks that are not the same number on each node.
        pub fn spares_of_tasks(tasks, nodes) on "--gpuos-spares" =
            "{tasks} tasks are not the same number on each of {nodes} nodes", write "--ntasks-per-node=N in place of --ntasks";
        /// A component of a heterogeneous job.
        pub fn spares_of_component() on "--gpuos-spares" =
            "components of heterogeneous jobs have no spares", write "no --gpuos-spares, or a job without components";
        /// The layout table does not say where the job's numbers are.
        pub fn spares_unknown() on "--gpuos-spares" =
            "gpuos does not know how this release of Slurm has it", write "--nodes=N with the spares counted in, --no-kill, and gpuos run --nodes=N in the script";
        /// A component of a heterogeneous job that is not its first.
        pub fn further_component() on "--gpuos-checkpoint" =
            "this is not the first component of its heterogeneous job, and checkpoints of two components would not be of the same moment",
            write "it for the first component alone, whose program saves, and nothing or --gpuos-checkpoint=off for the others";
        /// `[memory]` of gpuos.toml does not turn it on.
        pub fn memory_is_off() on "--gpuos-mem" =
            "this site gives jobs no more memory than their GPUs have",
            write "no --gpuos-mem; an administrator can allow it with [memory] oversubscribe = true in gpuos.toml";
        /// Parts of GPUs, or MPS.
        pub fn memory_goes_not_with(beside, why, undo) on "--gpuos-mem" =
            "it does not go with {beside}, {why}", write "one of the two ({undo})";
        /// slurm.conf has MaxNodeCount.
        pub fn memory_of_any_node() on "--gpuos-mem" =
            "this cluster may have nodes that slurm.conf does not name, and what their GPUs have is not known",
            write "no --gpuos-mem, or ask those who run the cluster";
        /// The job could get a GPU of which gpuos.toml does not say how much memory it has. What a type of GPU is called in slurm.conf does
        /// not tell: an A100 has 40 or 80 GB.
        pub fn memory_of_gpu_unknown(node) on "--gpuos-mem" =
            "how much memory the GPUs of node {node} have is not said",
            write "--gpus=TYPE:N with a type of which it is; an administrator says it with [[nodes]] or a [[node-type]] in gpuos.toml";
        /// No node has GPUs of the type.
        pub fn memory_of_no_gpu() on "--gpuos-mem" =
            "no node of this cluster has such GPUs", write "--gpus=TYPE:N with a type that gpuos topo shows";
        /// More than `most-percent` of a GPU that the job could get, or with tiers=hbm more than it has.
        pub fn memory_is_too_much(gpu, most, larger) on "--gpuos-mem" =
            "a GPU that the job could get has {gpu} MiB", write "at most {most}M here{larger}";
        /// Two jobs could be given the same host memory.
        pub fn memory_is_not_counted() on "--gpuos-mem" =
            "Slurm does not count memory on this cluster, so that the host's could be promised twice",
            write "--exclusive with it, or no --gpuos-mem; an administrator has it counted with SelectTypeParameters=CR_Core_Memory in slurm.conf";
        /// Host memory for the GPUs and that of the program together are more than any node has.
        pub fn memory_of_host_misfits(needed, largest) on "--gpuos-mem" =
            "with what the GPUs take of the host's memory the job needs {needed} MiB, and no node with such GPUs has more than {largest} MiB",
            write "a smaller size, or ask for fewer GPUs on each node";
        /// A `[[memory-share]]` of gpuos.toml holds for the job's account, partition or QOS.
        pub fn memory_beyond_share(needed, whose, most) on "--gpuos-mem" =
            "its GPUs take {needed} MiB of a node's host memory, and the jobs of {whose} get {most} MiB of a node together",
            write "a smaller size, or ask for fewer GPUs on each node";
        /// The job takes all memory of its nodes, and one that it could get has less than its GPUs need.
        pub fn memory_of_whole_node(share, host) on "--gpuos-mem" =
            "it takes {share} MiB of the host's memory for each GPU, and a node with such GPUs has {host} MiB in all",
            write "--mem=SIZE with it for the program itself, so that Slurm chooses a node with enough, or a smaller size";
        /// Slurm would give the job a default that it did not name.
        pub fn memory_of_program_unsaid() on "--gpuos-mem" =
            "how much of the host's memory the program itself needs is not said",
            write "--mem=SIZE or --mem-per-gpu=SIZE with it: what the GPUs take is added to that";
        /// How many CPUs go with a GPU is known when the job starts only.
        pub fn memory_per_cpu() on "--gpuos-mem" =
            "how much --mem-per-cpu is for each GPU is not known", write "--mem=SIZE or --mem-per-gpu=SIZE in its place";
        /// The job asks for memory by another GRES.
        pub fn memory_of_other_gres() on "--gpuos-mem" =
            "the job asks for memory in a way that gpuos does not understand", write "--mem=SIZE or --mem-per-gpu=SIZE";
        /// An update would take from the job what its GPUs need.
        pub fn memory_stays(share) on "--gpuos-mem" =
            "{share} MiB of the host's memory are counted for each GPU of the job, and the change would leave less",
            write "as much for each GPU and what the program needs, or cancel it and submit it anew";
        /// A text of the job, such as its name, would move the cursor or end a line wherever it is shown.
        pub fn control_character(option, code) on option =
            "has the control character U+{code}, which gpuos refuses in texts of jobs", write "one line of printable characters";
        /// A text of the job is longer than everybody's screens and programs should have to read.
        pub fn too_long(option, kib) on option =
            "is longer than {kib} KiB, more than gpuos lets a text of a job be", write "a shorter text";
    }
}

pub mod impossible {
    //! The same where it is about no option, and reasons of refusals.

    gpuos_model::messages! {
        /// The empty cluster could not run the job, for one of the reasons that follow.
        pub fn never(why) = "this job can never run: {why}; ask for less",
            "Ask for less, or for GPUs of another type.";
        /// A reason: too few GPUs or nodes.
        pub fn too_few(gpus, kind, nodes, have, room) =
            "it needs {gpus} {kind} on {nodes} nodes; the cluster has {have}, and {room} nodes that could take a share",
            "Ask for fewer GPUs, or for fewer on each node.";
        /// A reason: too few in one domain.
        pub fn too_narrow(need, what, level, domain, have, kind) =
            "it needs {need} {what} within one domain of the level {level}; the largest ({domain}) has {have} with such {kind}",
            "Take a wider level, or prefer it only: `--gpuos-topology=LEVEL`.";
        /// A reason: the fabric has no such level.
        pub fn unknown_level(level, known) = "this cluster has no level '{level}'; write one of {known}",
            "Do what it says.";
        /// A reason of a refused shape.
        pub fn nodes_not_filled(ranks, gpus) = "its {ranks} ranks do not fill nodes with {gpus} GPUs each",
            "Change the sizes, or the GPUs on each node.";
        /// The same.
        pub fn no_gpus() = "the job asks for no GPUs",
            "Ask for GPUs, with `--gpus-per-node=N` for example.";
        /// A reason of a refused option that stands for GRES: `steer = false`, or gpuos passes through.
        pub fn not_placed_by_gpuos() = "gpuos does not place jobs on this cluster now",
            "Administrators: slurmctld's log and `gpuos doctor` say why.";
        /// A reason why `--gpuos-mem` is refused: the layout table lacks a field.
        pub fn memory_not_in_table() = "gpuos does not know how this release of Slurm has the memory of jobs",
            "Administrators: see which release it is, and take a gpuos that knows it.";
        /// The same: gpuos.toml or slurm.conf has a mistake.
        pub fn files_have_a_mistake() = "gpuos cannot read its configuration",
            "Administrators: slurmctld's log and `gpuos doctor` name the line.";
        /// The same: slurmctld is out of memory.
        pub fn no_memory() = "slurmctld has no memory left",
            "Administrators: see to slurmctld's host.";
        /// The same: an old Slurm with stock placement would give the rest of a shared GPU away as a whole.
        pub fn not_shared(release, select_type, from) =
            "Slurm {release} with SelectType={select_type} gives a shared GPU as a whole once one of its jobs has ended; \
             SelectType=select/gpuos and Slurm {from} do not",
            "Administrators: set SelectType=select/gpuos, or take a newer Slurm.";
    }
}

pub mod notes {
    //! To whoever submits a job, which is taken.

    gpuos_model::messages! {
        /// Options that mean nothing for this job.
        pub fn are_ignored(options, verb, why) = "gpuos: {options} {verb} ignored: {why}",
            "Leave them out, or ask for what they are about.";
        /// Its reason where the job has no GPUs.
        pub fn no_gpus() = "the job asks for no GPUs; write --gpus=N with them",
            "Ask for GPUs with `--gpus=N`.";
        /// Its reason where the job has slices.
        pub fn about_whole_gpus() = "the job has slices, and they are about whole GPUs",
            "Leave the options out.";
        /// Slices and whole GPUs in one job.
        pub fn slices_beside_gpus(option) =
            "gpuos: {option}: beside whole GPUs, programs see these and not the slices, for CUDA takes no mixture: start \
             those for a slice with CUDA_VISIBLE_DEVICES set to one of $GPUOS_MIG_UUIDS",
            "Do what it says.";
        /// More slices than programs use.
        pub fn several_slices(option, whose, count, next) =
            "gpuos: {option}: a CUDA process uses one slice only, and {whose} has {count}; {next}",
            "Do what it says.";
        /// What to write instead.
        pub fn a_slice_each(one, tasks, more) =
            "write --gpuos-mig={one} with --ntasks-per-node={tasks} for a slice each{more}",
            "Do what it says.";
        /// The same where the slices are of several kinds.
        pub fn a_process_each() =
            "start a process for each, with CUDA_VISIBLE_DEVICES set to one of $GPUOS_MIG_UUIDS",
            "Do what it says.";
        /// The option names a level in which there are no GPUs: it `is ignored`, or `means nodes`.
        pub fn level_without_gpus(option, means, level) =
            "gpuos: {option} {means}: no domain of the level {level} has GPUs",
            "Name a level that `gpuos topo` shows with GPUs.";
        /// Names in an affinity rule that nobody has now.
        pub fn nobody_is_named(option, who) = "gpuos: {option}: {who}; until one does, this says nothing",
            "Correct the name, unless that job comes later.";
        /// Slices for a job: what was chosen.
        pub fn slices(option, kinds, board, slices) =
            "gpuos: {option}: {kinds} of {board} on each node, {slices}",
            "Nothing is to be done.";
        /// The same for each task.
        pub fn slices_of_tasks(option, kinds, board, slices, tasks) =
            "gpuos: {option}: {kinds} of {board} for each task, {slices} for the {tasks} of a node",
            "Nothing is to be done.";
        /// A part of a GPU: what was chosen, and what is kept apart from others on it.
        pub fn share(option, shards, most, threads, isolation) =
            "gpuos: {option}: {shards} of the {most} shards of a GPU on each node{threads}; {isolation}",
            "Take `--gpuos-mig` where that is too little.";
        /// A job that shares a GPU in turns with its memory: what it asks of Slurm for what is parked.
        pub fn turns(option, mib, jobs, all, own) =
            "gpuos: {option}: at most {jobs} jobs have a GPU in turns; {mib} MiB of the host's memory are a place for what is parked: --mem is {all} MiB on \
             each node, {own} MiB of it for the program itself",
            "Nothing is to be done.";
        /// The same where what is parked goes to NVMe.
        pub fn turns_on_nvme(option, mib, jobs, gres, gib) =
            "gpuos: {option}: at most {jobs} jobs have a GPU in turns; {gib} in GRES {gres} are GiB of NVMe on each node for the {mib} MiB that are parked, \
             and --mem is for the program alone",
            "Nothing is to be done.";
        /// A job with spare nodes.
        pub fn spares(option, nodes, all) =
            "gpuos: {option}: the job gets {all} nodes, {nodes} of them for the program that gpuos run starts in its script",
            "Write `gpuos run` in place of `srun`.";
        /// Memory beyond that of the GPUs, and what the job asks of Slurm for it.
        pub fn memory_of_node(option, share, gpu, all, own, gpus) =
            "gpuos: {option}: {share} MiB of the host's memory beside the {gpu} MiB of a GPU: --mem is {all} MiB on each node, {own} MiB of it \
             for the program itself, the rest for {gpus} of its GPUs",
            "Nothing is to be done.";
        /// The same where the job asks for memory by its GPUs.
        pub fn memory_of_gpu(option, share, gpu, all, own) =
            "gpuos: {option}: {share} MiB of the host's memory beside the {gpu} MiB of a GPU: --mem-per-gpu is {all} MiB, {own} MiB of it for the \
             program itself",
            "Nothing is to be done.";
        /// The same where the job has all memory of its nodes.
        pub fn memory_of_all(option, share, gpu) =
            "gpuos: {option}: {share} MiB of the host's memory beside the {gpu} MiB of a GPU, for each of them, out of all that the node has",
            "Nothing is to be done.";
        /// A size that a GPU has itself.
        pub fn memory_fits(option, gpu) = "gpuos: {option}: nothing of the host's memory, for a GPU has {gpu} MiB",
            "Nothing is to be done.";
        /// Checkpoints of a job that Slurm does not requeue, by its own options or by JobRequeue=0 of slurm.conf.
        pub fn not_requeued(option) =
            "gpuos: {option}: Slurm does not start the job again by itself after a node has failed; --requeue has it do so",
            "Submit with `--requeue`, or submit the job again yourself.";
        /// The folder in memory is larger than what the CPUs bring that the job has on each node for sure.
        pub fn memory_of_few_cpus(option, mib, cpus) =
            "gpuos: {option}: l0= is part of the job's memory, and with --mem-per-cpu of {mib} MiB a node has as much for it alone only if \
             the job has {cpus} CPUs there: the program may be ended for its memory",
            "Write `--mem=SIZE` for the program and `l0=` together, or a smaller `l0=`.";
        /// Checkpoints of a job in a partition or a QOS whose jobs other ones preempt, without a GraceTime.
        pub fn no_grace(option, of) =
            "gpuos: {option}: jobs of {of} may be preempted without notice (GraceTime=0), and what such a job did \
             since its last regular checkpoint is lost then",
            "Take a shorter interval, or another partition or QOS. Administrators: give it a GraceTime that a checkpoint fits in.";
        /// The same where the GraceTime is shorter than a checkpoint may take: 15 s until the preemption is seen and the job is requeued, and where it
        /// has `l0=` and gpuos.toml sets rates, that much at these.
        pub fn short_grace(option, of, grace, takes) =
            "gpuos: {option}: jobs of {of} have {grace} s when they are preempted (GraceTime), and a checkpoint may take \
             {takes} s or more: what such a job did since its last regular checkpoint may be lost then",
            "Take a shorter interval, or another partition or QOS. Administrators: give it a GraceTime that a checkpoint fits in.";
    }
}

#[cfg(test)]
#[path = "../../tests/reference/messages.rs"]
mod page;

#[test]
fn the_page_in_the_reference_has_every_message() {
    let tables = [
        ("job_submit/gpuos", in_log::ROWS),
        ("refused", refused::REFUSALS),
        ("impossible", impossible::ROWS),
        ("told", notes::ROWS),
    ];
    page::hold(&tables, &["Message::of_table", "OptionError::new"]);
}
