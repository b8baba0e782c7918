// Before anything is painted: the theme that the reader chose, if there is one.
try {
  const chosen = localStorage.getItem("course-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch (error) { /* storage may be forbidden: then the system's choice holds */ }
