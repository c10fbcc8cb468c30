/** Imports dropped files one after the other. */
import { ImportDialog } from "./import-dialog.js";

export async function importFiles(files) {
  for (const file of files) await new ImportDialog().open({ file });
}
