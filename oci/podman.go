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
	folder, is := storageFolder(s, id, bundle)
	if !is {
		return stored{}, false
	}
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

// storedLists are the files with the containers of a storage. Containers of the second one do not
// survive a restart of the machine.
var storedLists = []string{"containers.json", "volatile-containers.json"}

// storageFolder returns the folder with the lists of a container's storage. Podman's bundle is in it:
// STORAGE/DRIVER-containers/ID/userdata. CRI-O's is in a folder of that name for volatile files, and
// the container's root filesystem, which the engine has made, is in the storage. A folder with lists
// is that of a storage: Podman's containers may have a root filesystem anywhere.
func storageFolder(s *spec, id, bundle string) (folder string, is bool) {
	dir := filepath.Dir(bundle)
	if filepath.Base(bundle) != "userdata" || filepath.Base(dir) != id {
		return "", false
	}
	folder = filepath.Dir(dir)
	for _, name := range append([]string{"containers.lock"}, storedLists...) {
		if _, err := os.Lstat(filepath.Join(folder, name)); err == nil {
			return folder, true
		}
	}
	root, driver := s.storage()
	return filepath.Join(root, driver+"-containers"), root != "" && driver+"-containers" == filepath.Base(folder)
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
