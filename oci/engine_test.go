package oci

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/api"
)

const testID = "0123456789abcdef0123456789abcdef"

// files writes files below a folder.
func files(t *testing.T, dir string, texts map[string]string) string {
	t.Helper()
	for name, text := range texts {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// dockerDir makes dockerd's files of a container and of its image. It also makes the folder of
// another container.
func dockerDir(t *testing.T, id, config, host, image string) string {
	t.Helper()
	imageID := fmt.Sprintf("%x", sha256.Sum256([]byte(image)))
	root := files(t, t.TempDir(), map[string]string{
		"containers/" + testID + "/config.v2.json":         `{"ID":"` + id + `","Image":"sha256:` + imageID + `","Driver":"overlay2",` + config[1:],
		"containers/" + testID + "/hostconfig.json":        host,
		"containers/another/config.v2.json":                `{"ID":"another","Name":"/another","Config":{"Labels":{"tsugiki.dev/mode":"seccomp"}}}`,
		"containers/another/hostconfig.json":               `{"NetworkMode":"none"}`,
		"overlay2/x/merged/bin/true":                       "",
		"image/overlay2/imagedb/content/sha256/" + imageID: image,
	})
	return root
}

// containerdDir is dockerDir with the image in containerd's image store.
func containerdDir(t *testing.T, config, host, image string) string {
	t.Helper()
	const blobs = "containerd/daemon/io.containerd.content.v1.content/blobs/sha256/"
	hash := func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
	manifest := `{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:` + hash(image) + `"}}`
	return files(t, t.TempDir(), map[string]string{
		"containers/" + testID + "/config.v2.json": `{"ID":"` + testID + `","Image":"sha256:` + hash("index") + `","Driver":"overlayfs",` +
			`"ImageManifest":{"digest":"sha256:` + hash(manifest) + `"},` + config[1:],
		"containers/" + testID + "/hostconfig.json": host,
		blobs + hash(manifest):                      manifest,
		blobs + hash(image):                         image,
	})
}

const noImage = `{"config":{"Labels":null}}`

func TestFacts(t *testing.T) {
	newNetns := `"linux":{"namespaces":[{"type":"network"}]}`
	annotated := func(pairs string) string { return `{"annotations":{` + pairs + `},` + newNetns + `}` }
	labels := `{"Name":"/web","Config":{"Labels":{"tsugiki.dev/ingress":"a","tsugiki.dev/mode":"auto","other":"x"}},"State":{"Pid":0}}`
	docker := dockerDir(t, testID, labels, `{"NetworkMode":"none"}`, noImage)
	withImage := dockerDir(t, testID, labels, `{"NetworkMode":"none"}`, `{"config":{"Labels":{"tsugiki.dev/ingress":"a","tsugiki.dev/mode":"seccomp","other":"y"}}}`)
	inContainerd := containerdDir(t, labels, `{"NetworkMode":"none"}`, `{"config":{"Labels":{"tsugiki.dev/ingress":"a","tsugiki.dev/mode":"seccomp","other":"y"}}}`)
	damagedStore := containerdDir(t, labels, `{"NetworkMode":"none"}`, noImage)
	damage(t, filepath.Join(damagedStore, "containerd/daemon/io.containerd.content.v1.content/blobs/sha256"))
	damaged := dockerDir(t, testID, labels, `{"NetworkMode":"none"}`, noImage)
	damage(t, filepath.Join(damaged, "image/overlay2/imagedb/content/sha256"))
	bridged := dockerDir(t, testID, `{"Name":"/two words","Config":{"Labels":null}}`, `{"NetworkMode":"default"}`, noImage)
	joined := dockerDir(t, testID, labels, `{"NetworkMode":"container:another"}`, noImage)
	notOurs := dockerDir(t, "yet another", `{"Name":"/web"}`, `{"NetworkMode":"none"}`, noImage)
	const hooks = `"hooks":{"prestart":[{"path":"/x"}]},`
	from := func(root, id string) string {
		return `"mounts":[{"destination":"/etc/hosts","source":"` + root + `/containers/` + id + `/hosts"}],` + hooks + newNetns + `}`
	}
	storage := files(t, t.TempDir(), map[string]string{"containers.json": `[{"id":"x"},{"id":"` + testID + `","names":["pod","man"]}]`})
	task := func(namespace string) string {
		return filepath.Join("/run/containerd/io.containerd.runtime.v2.task", namespace, testID)
	}
	const pod = `"io.kubernetes.cri.sandbox-namespace":"ns","io.kubernetes.cri.sandbox-name":"pod","io.kubernetes.cri.container-name":"c","io.kubernetes.cri.container-type":`
	ours := map[string]string{"tsugiki.dev/ingress": "a", "tsugiki.dev/mode": "auto"}
	for name, tt := range map[string]struct {
		config, bundle string
		want           facts
	}{
		"nothing known":            {`{` + newNetns + `}`, "", facts{engine: other, name: "0123456789ab", loopback: true}},
		"no namespace":             {`{}`, "", facts{engine: other, name: "0123456789ab"}},
		"a namespace of another's": {`{"linux":{"namespaces":[{"type":"network","path":"/x"}]}}`, "", facts{engine: other, name: "0123456789ab"}},
		"hooks":                    {`{"hooks":{"createRuntime":[{"path":"/x"}]},` + newNetns + `}`, "", facts{engine: other, name: "0123456789ab"}},
		"annotated by nobody knows whom": {
			annotated(`"tsugiki.dev/name":"me","nerdctl/name":"you","a":"b",` + pod + `"sandbox"`), "",
			facts{engine: other, name: "0123456789ab", annotations: map[string]string{"tsugiki.dev/name": "me"}, unknown: []string{"tsugiki.dev/name"}, loopback: true},
		},
		"containerd": {
			annotated(`"tsugiki.dev/name":"me"`), task("default"),
			facts{engine: containerd, name: "0123456789ab", annotations: map[string]string{"tsugiki.dev/name": "me"}, loopback: true},
		},
		"pod": {annotated(pod + `"container"`), task("k8s.io"), facts{engine: kubernetes, name: "ns.pod.c", loopback: true}},
		"pod with a UID": {
			annotated(`"io.kubernetes.cri.sandbox-uid":"u-1","io.kubernetes.cri.sandbox-id":"s-1",` + pod + `"container"`), task("k8s.io"),
			facts{engine: kubernetes, name: "ns.pod.c", loopback: true, pod: &api.Pod{Namespace: "ns", Name: "pod", UID: "u-1", Container: "c", Sandbox: "s-1"}},
		},
		"sandbox": {annotated(pod + `"sandbox"`), task("k8s.io"), facts{engine: kubernetes, name: "ns.pod.c", loopback: true, sandbox: true}},
		"what says that it is CRI-O's": {
			annotated(`"io.container.manager":"cri-o","io.kubernetes.cri-o.ContainerType":"sandbox"`), filepath.Join(storage, testID, "userdata"), facts{engine: podman, name: "pod", loopback: true},
		},
		"what says that it is podman's": {
			annotated(`"io.container.manager":"libpod","tsugiki.dev/mode":"auto"`), "/x",
			facts{engine: other, name: "0123456789ab", annotations: map[string]string{"tsugiki.dev/mode": "auto"}, unknown: []string{"tsugiki.dev/mode"}, loopback: true},
		},
		"docker's that says that it is a pod's": {
			`{"annotations":{` + pod + `"container"},` + from(docker, testID), task("moby"), facts{engine: "docker", name: "web", annotations: ours, loopback: true},
		},
		"nerdctl":         {annotated(`"nerdctl/name":"n","nerdctl/networks":"[\"bridge\"]"`), task("default"), facts{engine: nerdctl, name: "n"}},
		"an illegal name": {annotated(`"nerdctl/name":"../a b"`), task("default"), facts{engine: nerdctl, name: "a-b", loopback: true}},
		"docker": {
			`{"annotations":{"tsugiki.dev/mode":"seccomp"},` + from(docker, testID), "",
			facts{engine: "docker", name: "web", annotations: map[string]string{"tsugiki.dev/ingress": "a", "tsugiki.dev/mode": "seccomp"}, loopback: true},
		},
		"docker by its root file system": {
			`{"root":{"path":"` + docker + `/overlay2/x/merged"},` + newNetns + `}`, task("moby"), facts{engine: "docker", name: "web", annotations: ours, loopback: true},
		},
		"an image's labels": {
			`{` + from(withImage, testID), task("moby"),
			facts{engine: "docker", name: "web", annotations: map[string]string{"tsugiki.dev/mode": "auto"}, image: []string{"tsugiki.dev/ingress"}, loopback: true},
		},
		"an image's labels, in containerd's image store": {
			`{` + from(inContainerd, testID), task("moby"),
			facts{engine: "docker", name: "web", annotations: map[string]string{"tsugiki.dev/mode": "auto"}, image: []string{"tsugiki.dev/ingress"}, loopback: true},
		},
		"an image of containerd's image store that is another by now": {
			`{` + from(damagedStore, testID), task("moby"),
			facts{engine: "docker", name: "web", annotations: ours, unknown: []string{"tsugiki.dev/ingress", "tsugiki.dev/mode"}, loopback: true},
		},
		"an image's label that is an annotation too": {
			`{"annotations":{"tsugiki.dev/ingress":"a"},` + from(withImage, testID), task("moby"), facts{engine: "docker", name: "web", annotations: ours, loopback: true},
		},
		"an image that is another by now": {
			`{` + from(damaged, testID), task("moby"),
			facts{engine: "docker", name: "web", annotations: ours, unknown: []string{"tsugiki.dev/ingress", "tsugiki.dev/mode"}, loopback: true},
		},
		"docker's bridge":            {`{` + from(bridged, testID), "", facts{engine: "docker", name: "two-words"}},
		"another's network":          {`{` + from(joined, "another"), task("moby"), facts{engine: "docker", name: "web", annotations: ours}},
		"another's of docker":        {`{` + from(notOurs, testID), "", facts{engine: other, name: "0123456789ab"}},
		"not docker's":               {`{` + from("/etc", testID), "", facts{engine: other, name: "0123456789ab"}},
		"a pod that mounts docker's": {`{"annotations":{` + pod + `"container"},` + from(docker, testID), task("k8s.io"), facts{engine: other, name: "0123456789ab"}},
		"docker adds the interfaces": {`{` + strings.Replace(from(bridged, testID), hooks, "", 1), task("moby"), facts{engine: "docker", name: "two-words"}},
		"podman":                     {annotated(`"io.container.manager":"libpod"`), filepath.Join(storage, testID, "userdata"), facts{engine: podman, name: "pod", loopback: true}},
		"podman, with what is another engine's": {
			annotated(`"io.container.manager":"libpod","nerdctl/name":"n",` + pod + `"sandbox"`), filepath.Join(storage, testID, "userdata"), facts{engine: podman, name: "pod", loopback: true},
		},
	} {
		s, err := parseSpec([]byte(tt.config))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := factsOf(s, testID, tt.bundle)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if tt.want.annotations == nil {
			tt.want.annotations = map[string]string{}
		}
		got.unknown, got.image = append([]string(nil), got.unknown...), append([]string(nil), got.image...)
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(facts{})); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
	s, err := parseSpec([]byte(`{"mounts":[{"destination":"/etc/hosts","source":"/x"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := factsOf(s, testID, task("moby")); err == nil || !strings.Contains(err.Error(), "its labels are not known") {
		t.Errorf("a container of dockerd, which does not know it: %v", err)
	}
}

// damage overwrites the files of a folder.
func damage(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.WriteFile(filepath.Join(dir, e.Name()), []byte(`{"config":{}}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLegal(t *testing.T) {
	long := strings.Repeat("x", 70)
	got := legal(long)
	if len(got) != api.NameMax || !strings.HasPrefix(got, strings.Repeat("x", 54)+"-") || got == legal(long+"y") {
		t.Errorf("a long name became %q", got)
	}
}

// An annotation belongs to the image if one of the image's manifests has it.
func TestPodmanImage(t *testing.T) {
	image := strings.Repeat("ab", 32)
	const first, second = `{"annotations":{"tsugiki.dev/egress":"a"}}`, `{"annotations":{"tsugiki.dev/egress":"b","tsugiki.dev/mode":"auto"}}`
	for name, tt := range map[string]struct {
		container string
		files     map[string]string
		egress    string
		image     []string
		unknown   bool
	}{
		"the image's":           {`"image":"` + image + `"`, map[string]string{"manifest": first}, "a", []string{"tsugiki.dev/egress"}, false},
		"of who starts it":      {`"image":"` + image + `"`, map[string]string{"manifest": first}, "b", nil, false},
		"of a former manifest":  {`"image":"` + image + `"`, map[string]string{"manifest": first, "=bWFuaWZlc3Qtc2hhMjU2OmFi": second}, "b", []string{"tsugiki.dev/egress"}, false},
		"not of other files":    {`"image":"` + image + `"`, map[string]string{"manifest": `{}`, "=c2hhMjU2OmFi": second, "config": second}, "b", nil, false},
		"no image":              {`"image":""`, nil, "a", nil, false},
		"image of another form": {`"image":"../x"`, map[string]string{"manifest": first}, "a", nil, true},
		"no manifest":           {`"image":"` + image + `"`, map[string]string{"config": `{}`}, "a", nil, true},
		"half a manifest":       {`"image":"` + image + `"`, map[string]string{"manifest": first[:9]}, "a", nil, true},
		"an image that is gone": {`"image":"` + strings.Repeat("cd", 32) + `"`, map[string]string{"manifest": first}, "a", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			storage := files(t, t.TempDir(), map[string]string{"overlay-containers/volatile-containers.json": `[{"id":"` + testID + `","names":["web"],` + tt.container + `}]`})
			for file, text := range tt.files {
				files(t, storage, map[string]string{"overlay-images/" + image + "/" + file: text})
			}
			s, err := parseSpec([]byte(`{"annotations":{"io.container.manager":"libpod","tsugiki.dev/egress":"` + tt.egress + `"}}`))
			if err != nil {
				t.Fatal(err)
			}
			f, err := factsOf(s, testID, filepath.Join(storage, "overlay-containers", testID, "userdata"))
			if err != nil || f.engine != podman || f.name != "web" {
				t.Fatalf("%+v, %v", f, err)
			}
			if len(f.unknown) == 1 != tt.unknown || cmp.Diff(tt.image, append([]string(nil), f.image...)) != "" || len(f.annotations)+len(f.image) != 1 {
				t.Errorf("%+v", f)
			}
		})
	}
}
