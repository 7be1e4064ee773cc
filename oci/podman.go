package oci

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// stored is a container in the lists of containers/storage, which Podman and CRI-O use.
type stored struct {
	ID       string   `json:"id"`
	Names    []string `json:"names"`
	Image    string   `json:"image"`    // id; empty: the container has no image
	Metadata string   `json:"metadata"` // the engine's
	folder   string   // DRIVER-containers
	pod      crioPod  // zero: the container is not CRI-O's
}

// findStored finds a container in the lists of its storage, STORAGE/DRIVER-containers.
func findStored(s *spec, id, bundle string) (stored, bool) {
	if !isStored(id, bundle) {
		return stored{}, false
	}
	folder := filepath.Dir(filepath.Dir(bundle))
	if c, is := storedIn(folder, id); is {
		return c, true
	}
	root, driver := s.storage()
	if root == "" || driver+"-containers" != filepath.Base(folder) {
		return stored{}, false
	}
	c, is := storedIn(filepath.Join(root, driver+"-containers"), id)
	return c, is && c.engine() == kubernetes
}

// isStored reports whether a bundle is in DRIVER-containers/ID/userdata. That is Podman's storage, or a
// folder of that form for volatile files of CRI-O's. CRI-O's lists are in its storage, where it has made
// the container's root filesystem. CRI-O leaves lists in the other folder
// when its transient_store is turned off. Podman's containers may have a root filesystem anywhere, and all are in Podman's lists.
func isStored(id, bundle string) bool {
	dir := filepath.Dir(bundle)
	return filepath.Base(bundle) == "userdata" && filepath.Base(dir) == id
}

// storedLists are the files with the containers of a storage. Containers of the second one do not
// survive a restart of the machine.
var storedLists = []string{"containers.json", "volatile-containers.json"}

// storedIn finds a container in the lists of a folder.
func storedIn(folder, id string) (stored, bool) {
	var all []stored
	for _, name := range storedLists {
		if data, err := readFile(filepath.Join(folder, name)); err == nil {
			all = append(all, parseStored(data)...)
		}
	}
	c, is := inStorage(all, id)
	if is {
		c.folder, c.pod = folder, podIn(all, c)
	}
	return c, is
}

func parseStored(data []byte) []stored {
	var list []stored
	if json.Unmarshal(data, &list) != nil {
		return nil
	}
	return list
}

func inStorage(all []stored, id string) (stored, bool) {
	i := slices.IndexFunc(all, func(c stored) bool { return c.ID == id })
	if i < 0 {
		return stored{}, false
	}
	return all[i], true
}

// engine returns the engine by the metadata that the engine has written. Annotations may come
// from the image, also io.container.manager.
func (c stored) engine() string {
	if c.pod.Sandbox != "" {
		return kubernetes
	}
	return podman
}

func (c stored) name() string {
	if len(c.Names) == 0 {
		return ""
	}
	return c.Names[0]
}

// storedImage matches the id of an image, which is also the name of its folder.
var storedImage = regexp.MustCompile(`^[0-9a-f]{64}$`)

// imageAnnotations returns a function that recognizes annotations of the container's image.
// Podman before version 5 copies them to its containers. An image may have several manifests:
// an annotation of any of them is the image's. It returns nil if the manifests are not found.
func (c stored) imageAnnotations() func(key, value string) bool {
	if c.Image == "" {
		return nothing // the container was made of a root file system
	}
	driver, ok := strings.CutSuffix(filepath.Base(c.folder), "-containers")
	if !ok || !storedImage.MatchString(c.Image) {
		return nil
	}
	dir := filepath.Join(filepath.Dir(c.folder), driver+"-images", c.Image)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var manifests []map[string]string
	for _, e := range entries {
		if !isManifest(e.Name()) {
			continue
		}
		data, err := readFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil
		}
		annotations, err := parseManifest(data)
		if err != nil {
			return nil
		}
		manifests = append(manifests, annotations)
	}
	if len(manifests) == 0 {
		return nil
	}
	return func(key, value string) bool {
		return slices.ContainsFunc(manifests, func(annotations map[string]string) bool {
			v, is := annotations[key]
			return is && v == value
		})
	}
}

// isManifest reports whether a file of an image is "manifest", or "manifest-DIGEST". The second
// name is encoded as "=" and base64.
func isManifest(name string) bool {
	return name == "manifest" || strings.HasPrefix(name, "=bWFuaWZlc3Qt")
}

func parseManifest(data []byte) (map[string]string, error) {
	var manifest struct {
		Annotations map[string]string `json:"annotations"`
	}
	err := json.Unmarshal(data, &manifest)
	return manifest.Annotations, err
}
