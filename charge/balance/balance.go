// Package balance decides how much of its CPU quota a container may still use.
package balance
