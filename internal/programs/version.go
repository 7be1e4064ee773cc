package programs

import "runtime/debug"

// version is set by make build; see packaging/version.sh.
var version string

// Version returns the version of the running program: that of the tag, or of the commit, from
// which it was built, or "(devel)" if the build does not know.
func Version() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
