// Package shim owns the name of the preloaded library (its C is in shim/c) and the
// environment variable that has a program load it.
//
// It neither finds nor reads the library. It needs no privilege and no particular kernel.
package shim

import (
	"slices"
	"strings"
)

// LibraryFile is the library's path below the folder that an api.Registered names. The dynamic
// loader of glibc replaces $LIB with the name of its own library folder, so that each program
// finds the library for its architecture. The one of musl does not, and finds the library in a
// folder that has the name $LIB.
const LibraryFile = "preload/$LIB/libtsugiki.so"

// variable is the dynamic loader's list of libraries, see ld.so(8).
const variable = "LD_PRELOAD="

// Preload returns the environment env with a library added to LD_PRELOAD. It leaves env
// itself unchanged.
//
// The library comes last. Libraries that are listed already may wrap the functions of this
// one; behind this one they would never be called. A list that names the library stays as it
// is. Where env has several lists, Preload adds the library to each of them, because loaders
// differ in which of them they read.
func Preload(env []string, library string) []string {
	env = slices.Clone(env)
	found := false
	for i, e := range env {
		list, is := strings.CutPrefix(e, variable)
		if !is {
			continue
		}
		found = true
		if !slices.Contains(strings.FieldsFunc(list, isSeparator), library) {
			env[i] = variable + strings.TrimPrefix(list+":"+library, ":")
		}
	}
	if !found {
		env = append(env, variable+library)
	}
	return env
}

// isSeparator reports whether a character ends an entry of LD_PRELOAD.
func isSeparator(r rune) bool { return r == ':' || r == ' ' }
