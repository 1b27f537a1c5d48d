# Makes the files of a private Grid Engine before its hosts are there.
# Arguments: folder of the lab, folder with the packages, hosts.
set -eu
dir=$1 root=$2
shift 2
mkdir -p "$dir/etc" "$dir/bin" "$dir/share" "$dir/hosts" "$dir/home" "$dir/work" "$dir/cell/default/common" "$dir/saves"
chmod 755 "$dir"
chmod 1777 "$dir/work" "$dir/saves"
cp -a /etc/. "$dir/etc"
etc=$dir/etc
uid=58100
for user in sgeadmin alice bob; do
    sed -i "/^$user:/d" "$etc/passwd" "$etc/group"
    echo "$user:x:$uid:$uid::$dir/home/$user:/bin/sh" >>"$etc/passwd"
    echo "$user:x:$uid:" >>"$etc/group"
    mkdir -p "$dir/home/$user"
    chown "$uid:$uid" "$dir/home/$user"
    uid=$((uid + 1))
done
rm -f "$etc/hosts" "$etc/nsswitch.conf" "$etc/resolv.conf" "$etc/services"
printf 'passwd: files\ngroup: files\nhosts: files\nservices: files\n' >"$etc/nsswitch.conf"
printf 'sge_qmaster 6444/tcp\nsge_execd 6445/tcp\n' >"$etc/services"
echo '127.0.0.1 localhost' >"$etc/hosts"
nth=0
for host in "$@"; do
    nth=$((nth + 1))
    echo "10.79.0.$nth $host" >>"$etc/hosts"
    mkdir -p "$dir/hosts/$host/spool/execd" "$dir/hosts/$host/dev"
    chown -R 58100:58100 "$dir/hosts/$host/spool"
done
mkdir -p "$dir/hosts/$1/spool/qmaster/job_scripts" "$dir/hosts/$1/spool/spooldb"
chown -R 58100:58100 "$dir/hosts/$1/spool"
cell=$dir/cell
for part in util mpi; do ln -s "/usr/share/gridengine/$part" "$cell/$part"; done
echo "$1" >"$cell/default/common/act_qmaster"
sed 's,^binary_path .*,binary_path /usr/lib/gridengine,' "$root/usr/share/gridengine/default-bootstrap" >"$cell/default/common/bootstrap"
chown -R 58100:58100 "$cell"
mkdir -p "$etc/default"
printf 'SGE_ROOT=/var/lib/gridengine\nSGE_CELL=default\nSGE_ARCH=lx-amd64\n' >"$etc/default/gridengine"
echo 'GPUOS_OPTIONS=$(cat /run/gpuos.options 2>/dev/null)' >"$etc/default/gpuos-gridengine"
