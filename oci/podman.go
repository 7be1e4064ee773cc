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
}

// findStored finds a container in the lists of its storage. The bundle is
// STORAGE/DRIVER-containers/ID/userdata; CRI-O may use another storage.
func findStored(id, bundle string) (stored, bool) {
	dir := filepath.Dir(bundle)
	if filepath.Base(bundle) != "userdata" || filepath.Base(dir) != id {
		return stored{}, false
	}
	folder := filepath.Dir(dir)
	for _, name := range []string{"containers.json", "volatile-containers.json"} {
		data, err := readFile(filepath.Join(folder, name))
		if err != nil {
			continue
		}
		if c, ok := parseStored(data, id); ok {
			c.folder = folder
			return c, true
		}
	}
	return stored{}, false
}

func parseStored(data []byte, id string) (stored, bool) {
	var list []stored
	if json.Unmarshal(data, &list) != nil {
		return stored{}, false
	}
	i := slices.IndexFunc(list, func(c stored) bool { return c.ID == id })
	if i < 0 {
		return stored{}, false
	}
	return list[i], true
}

// engine returns the engine by the metadata that the engine has written. Annotations may come
// from the image, also io.container.manager.
func (c stored) engine() string {
	var m struct {
		PodID string `json:"pod-id"`
	}
	if json.Unmarshal([]byte(c.Metadata), &m) == nil && m.PodID != "" {
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
