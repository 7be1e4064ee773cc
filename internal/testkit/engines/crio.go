package engines

import (
	"fmt"
	"path/filepath"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// crioConfig is CRI-O's. %[1]s is the rig's folder, %[2]s the image's name, %[3]s the folder of
// CRI-O's programs, %[4]s that of network plugins, %[5]s more runtimes, %[6]s what is called for runc. A pod has no process of its own
// (drop_infra_ctr is CRI-O's default): nothing of the image's is called "pause".
const crioConfig = `[crio]
root = "%[1]s/storage"
runroot = "/run/containers/storage"
storage_driver = "overlay"
storage_option = []
log_dir = "%[1]s/crio-logs"
version_file = "/run/crio/version"
version_file_persist = ""
clean_shutdown_file = ""
[crio.api]
listen = "` + crioSocket + `"
[crio.image]
pause_image = "%[2]s"
pause_command = ""
[crio.runtime]
cgroup_manager = "cgroupfs"
default_runtime = "runc"
pinns_path = "%[3]s/pinns"
hooks_dir = []
[crio.runtime.runtimes.runc]
runtime_path = "%[6]s"
runtime_root = "/run/runc"
[crio.network]
network_dir = "/etc/cni/net.d"
plugin_dirs = ["%[4]s"]
[crio.nri]
enable_nri = false
%[5]s`

const crioRuntime = `[crio.runtime.runtimes.%[1]s]
runtime_path = %[2]q
runtime_root = "/run/%[1]s"
`

// CRIORunc is what CRI-O of a rig calls for runc. Each runtime of such a rig has to call it.
const CRIORunc = "/etc/crio/runc"

// runcScript takes from containers what machines for tests lack: hugetlb, without which runc takes no
// limits of it, and CAP_SYS_RESOURCE, without which no oom_score_adj is lowered. CRI-O has no settings
// for these. runc gets a folder with another config.json: that of the bundle remains as it was.
const runcScript = `#!/bin/sh
set -e
bundle= before=
for arg; do
	shift
	if [ "$before" = --bundle ]; then
		bundle=$arg arg=$arg/rig
	fi
	before=$arg
	set -- "$@" "$arg"
done
if [ "$bundle" ]; then
	mkdir -p "$bundle/rig"
	tr -d '\n\t' <"$bundle/config.json" |
		sed -e 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj":0/' -e 's/"hugepageLimits": *\[[^]]*\]/"hugepageLimits":[]/' >"$bundle/rig/config.json"
fi
exec /usr/sbin/runc "$@"
`

// crioSocket is where CRI-O listens, in the rig.
const crioSocket = "/run/crio/crio.sock"

// startCRIO starts CRI-O, with the rest from Debian: conmon, runc and the network plugins.
func startCRIO(t testkit.TB, r *Rig) Engine {
	t.Helper()
	crio := filepath.Join(r.CRIO, "crio")
	need(t, r, crio, filepath.Join(r.CRIO, "pinns"), "conmon", "runc", "podman",
		"/usr/lib/cni/bridge", "/usr/lib/cni/host-local", "/usr/lib/cni/loopback", "iptables")
	var runtimes strings.Builder
	for name, path := range r.Runtimes {
		fmt.Fprintf(&runtimes, crioRuntime, name, path)
	}
	r.configure(t, map[string]string{
		"/etc/cni/net.d/0-pods.conflist": r.network(),
		// The image of a manifest may have a short name.
		"/etc/containers/registries.conf.d/rig.conf": "unqualified-search-registries = [\"docker.io\"]\n",
		"/etc/crio/crio.conf":                        fmt.Sprintf(crioConfig, r.dir, ImageName, r.CRIO, r.pluginFolder(t), runtimes.String(), CRIORunc),
		CRIORunc:                                     runcScript,
	})
	if _, err := r.run("chmod", "+x", CRIORunc); err != nil {
		t.Fatalf("%v", err)
	}
	if err := r.loadStorage(r.Image); err != nil {
		t.Fatalf("%v", err)
	}
	e := r.newKube(t, "crio", crioSocket, r.loadStorage)
	r.daemon(t, func() error {
		ctx, cancel := e.limit()
		defer cancel()
		_, err := e.client.Version(ctx, &cri.VersionRequest{})
		return err
	}, crio)
	return e
}

// loadStorage puts an image into CRI-O's storage, which is of the same form as Podman's. CRI-O pulls
// images from registries alone.
func (r *Rig) loadStorage(i *Image) error {
	_, err := r.run("podman", "--root", filepath.Join(r.dir, "storage"), "--runroot", "/run/containers/storage", "--storage-driver", "overlay",
		"load", "-q", "-i", i.archive(false))
	return err
}
