package oci

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/api"
)

const boxID = "fedcba9876543210fedcba9876543210"

// crioEntry is an entry of the lists of CRI-O's storage.
func crioEntry(t *testing.T, id string, metadata map[string]any) string {
	t.Helper()
	text, err := json.Marshal(metadata)
	if err == nil {
		text, err = json.Marshal(map[string]any{"id": id, "names": []string{"k8s_c"}, "metadata": string(text)})
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// crioBundle is the bundle of a container in the folder for volatile files of CRI-O's storage.
func crioBundle(id string) string {
	return filepath.Join("/run/containers/storage/overlay-containers", id, "userdata")
}

// under puts files into a folder.
func under(folder string, texts map[string]string) map[string]string {
	all := map[string]string{}
	for name, text := range texts {
		all[filepath.Join(folder, name)] = text
	}
	return all
}

// forged are annotations of a pod that wants to be another one, or no pod.
const forged = `"io.kubernetes.cri-o.ContainerType":"sandbox","io.kubernetes.cri.container-type":"sandbox","io.kubernetes.cri-o.Namespace":"kube-system",` +
	`"io.kubernetes.cri-o.KubeName":"theirs","io.kubernetes.cri-o.SandboxID":"theirs","io.kubernetes.cri-o.Metadata":"{\"name\":\"theirs\"}",` +
	`"io.kubernetes.cri-o.Labels":"{\"io.kubernetes.pod.uid\":\"theirs\"}","io.kubernetes.pod.uid":"theirs","io.kubernetes.pod.name":"theirs",` +
	`"io.kubernetes.pod.namespace":"kube-system","io.kubernetes.container.name":"theirs","io.kubernetes.cri.sandbox-uid":"theirs",` +
	`"io.kubernetes.cri.sandbox-name":"theirs","io.kubernetes.cri.sandbox-namespace":"kube-system","io.kubernetes.cri.container-name":"theirs",` +
	`"io.container.manager":"libpod","nerdctl/name":"theirs"`

// The pod of a container is the one that CRI-O's storage names, whatever its annotations say.
func TestCRIOPod(t *testing.T) {
	box := map[string]any{"pod-id": boxID, "pod-name": "k8s_pod_ns_u-1_0", "name": "k8s_POD_pod_ns_u-1_0", "metadata-name": "pod", "uid": "u-1", "namespace": "ns", "pod": true}
	container := map[string]any{"pod-id": boxID, "name": "k8s_main_pod_ns_u-1_0", "metadata-name": "main"}
	but := func(m map[string]any, key string, value any) map[string]any {
		other := map[string]any{key: value}
		for k, v := range m {
			if k != key {
				other[k] = v
			}
		}
		return other
	}
	entries := func(box, container map[string]any) []string {
		return []string{crioEntry(t, boxID, box), crioEntry(t, testID, container)}
	}
	const volatile, kept = "volatile-containers.json", "containers.json"
	list := func(entries ...string) string { return "[" + strings.Join(entries, ",") + "]" }
	both := entries(box, container)
	ours := &api.Pod{Namespace: "ns", Name: "pod", UID: "u-1", Container: "main", Sandbox: boxID}
	known := facts{engine: kubernetes, name: "ns.pod.main", pod: ours}
	unknown := facts{engine: kubernetes, name: testID[:12]}
	for name, tt := range map[string]struct {
		id    string
		lists map[string]string
		want  facts
	}{
		"container":                                {testID, map[string]string{volatile: list(both...)}, known},
		"container, of an older CRI-O":             {testID, map[string]string{kept: list(both...)}, known},
		"container of a sandbox of an older CRI-O": {testID, map[string]string{kept: list(both[0]), volatile: list(both[1])}, known},
		"sandbox":                     {boxID, map[string]string{volatile: list(both...)}, facts{engine: kubernetes, name: boxID[:12], sandbox: true}},
		"no sandbox":                  {testID, map[string]string{volatile: list(both[1])}, unknown},
		"half a list":                 {testID, map[string]string{volatile: list(both[1]), kept: both[0]}, unknown},
		"a sandbox without a UID":     {testID, map[string]string{volatile: list(entries(but(box, "uid", ""), container)...)}, facts{engine: kubernetes, name: "ns.pod.main"}},
		"a sandbox without namespace": {testID, map[string]string{volatile: list(entries(but(box, "namespace", ""), container)...)}, unknown},
		"a container without name":    {testID, map[string]string{volatile: list(entries(box, but(container, "metadata-name", ""))...)}, unknown},
		"a container for a sandbox":   {testID, map[string]string{volatile: list(entries(but(box, "pod", false), container)...)}, unknown},
		"a sandbox of another":        {testID, map[string]string{volatile: list(entries(but(box, "pod-id", "x"), container)...)}, unknown},
		"itself for a sandbox":        {testID, map[string]string{volatile: list(crioEntry(t, testID, but(container, "pod-id", testID)))}, unknown},
	} {
		for said, annotations := range map[string]string{"says nothing": "", "says that it is another's": forged} {
			t.Run(name+" "+said, func(t *testing.T) {
				storage := files(t, t.TempDir(), under("overlay-containers", tt.lists))
				s, err := parseSpec([]byte(`{"root":{"path":"` + storage + `/overlay/layer/merged"},"annotations":{` + annotations + `}}`))
				if err != nil {
					t.Fatal(err)
				}
				got, err := factsOf(s, tt.id, crioBundle(tt.id))
				if err != nil {
					t.Fatal(err)
				}
				tt.want.annotations = map[string]string{}
				if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(facts{})); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			})
		}
	}
}

// A container whose storage is not found is not created, whatever its annotations say: it might have a
// grant, or none.
func TestCRIOUnknown(t *testing.T) {
	list := map[string]string{"volatile-containers.json": "[" + crioEntry(t, testID, map[string]any{"pod-id": boxID}) + "]"}
	storage := files(t, t.TempDir(), under("overlay-containers", list))
	own := `"io.container.manager":"cri-o","tsugiki.dev/mode":"auto"`
	theirs := `"io.container.manager":"other","tsugiki.dev/mode":"auto"`
	for name, tt := range map[string]struct{ root, annotations, bundle string }{
		"no root filesystem":                      {"", own, crioBundle(testID)},
		"no root filesystem, and another manager": {"", theirs, crioBundle(testID)},
		"another root filesystem":                 {`"root":{"path":"/srv/x"},`, own, crioBundle(testID)},
		"a relative path":                         {`"root":{"path":"rootfs"},`, own, crioBundle(testID)},
		"another driver":                          {`"root":{"path":"` + storage + `/vfs/dir/x"},`, own, crioBundle(testID)},
		"another container":                       {`"root":{"path":"` + storage + `/overlay/layer/merged"},`, own, crioBundle(boxID)},
		"another container and manager":           {`"root":{"path":"` + storage + `/overlay/layer/merged"},`, theirs, crioBundle(boxID)},
		"another bundle":                          {`"root":{"path":"` + storage + `/overlay/layer/merged"},`, own, "/run/x/" + testID},
	} {
		s, err := parseSpec([]byte(`{` + tt.root + `"annotations":{` + tt.annotations + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		id := testID
		if strings.Contains(tt.bundle, boxID) {
			id = boxID
		}
		if f, err := factsOf(s, id, tt.bundle); err == nil || !strings.Contains(err.Error(), "no storage of Podman or CRI-O has container "+id) {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}

// Lists that are left in the folder of volatile files do not keep those of the storage from being found.
func TestCRIOLeftLists(t *testing.T) {
	entry := crioEntry(t, testID, map[string]any{"pod-id": boxID, "metadata-name": "main"})
	box := crioEntry(t, boxID, map[string]any{"pod-id": boxID, "metadata-name": "pod", "uid": "u-1", "namespace": "ns", "pod": true})
	storage := files(t, t.TempDir(), map[string]string{"overlay-containers/volatile-containers.json": "[" + entry + "," + box + "]"})
	for name, texts := range map[string]map[string]string{
		"a lock":      {"overlay-containers/containers.lock": ""},
		"an old list": {"overlay-containers/volatile-containers.json": "[" + box + "]"},
		"no list":     {"overlay-containers/volatile-containers.json": "{"},
	} {
		left := files(t, t.TempDir(), texts)
		s, err := parseSpec([]byte(`{"root":{"path":"` + storage + `/overlay/layer/merged"}}`))
		if err != nil {
			t.Fatal(err)
		}
		f, err := factsOf(s, testID, filepath.Join(left, "overlay-containers", testID, "userdata"))
		if err != nil || f.pod == nil || f.pod.UID != "u-1" {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}

// A container that is in Podman's list may have any root filesystem: what looks like CRI-O's storage
// beside that counts for nothing.
func TestPodmanIsNotCRIO(t *testing.T) {
	entry := crioEntry(t, testID, map[string]any{"pod-id": boxID, "metadata-name": "main"})
	box := crioEntry(t, boxID, map[string]any{"pod-id": boxID, "metadata-name": "pod", "uid": "u-1", "namespace": "ns", "pod": true})
	theirs := files(t, t.TempDir(), map[string]string{"overlay-containers/containers.json": "[" + entry + "," + box + "]"})
	for _, list := range storedLists {
		storage := files(t, t.TempDir(), map[string]string{"overlay-containers/" + list: `[{"id":"` + testID + `","names":["web"],"metadata":"{}"}]`})
		s, err := parseSpec([]byte(`{"root":{"path":"` + theirs + `/overlay/layer/merged"}}`))
		if err != nil {
			t.Fatal(err)
		}
		f, err := factsOf(s, testID, filepath.Join(storage, "overlay-containers", testID, "userdata"))
		if err != nil || f.pod != nil || f.engine != podman || f.name != "web" {
			t.Errorf("%s: %+v, %v", list, f, err)
		}
	}
	// A storage of Podman's that is not in the list of the bundle's folder is none.
	other := files(t, t.TempDir(), map[string]string{"overlay-containers/containers.json": `[{"id":"` + testID + `","names":["web"]}]`})
	s, err := parseSpec([]byte(`{"root":{"path":"` + other + `/overlay/layer/merged"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if f, err := factsOf(s, testID, crioBundle(testID)); err == nil {
		t.Errorf("a container of Podman, by its root filesystem: %+v", f)
	}
}
